"""The paper's alignment policy: tumbling windows."""

from odb_nodes.batching.window import Window
from odb_nodes.protocol.policy import Refill
from odb_nodes.protocol.proposal import Proposal
from odb_nodes.protocol.reports import Facts, Report


class TumblingPolicy:
    """Tumbling windows: cut the whole window, emit what all ranks can, recirculate the rest.

    ``T = max(1, min(max groups, min capacity, min samples))`` over ranks that have samples, so
    a rank with fewer groups can always split and is idle only when it is exhausted.
    Source: arXiv 2606.19989, the max-based alignment rule.
    """

    name = "tumbling"

    def capacity(self, window: int, steps: int, samples: float) -> int | None:
        return None

    def propose(self, window: Window, refill: Refill, capacity: int | None) -> Proposal:
        exhausted = not refill(window)
        groups = sorted(window.partition(), key=window.weight, reverse=True)  # keep the largest
        report = Report(
            groups=len(groups), samples=len(window), capacity=capacity, exhausted=exhausted
        )
        return Proposal(groups=groups, taken=False, report=report)

    def target(self, facts: Facts) -> int:
        return max(1, min(facts.max_groups, facts.min_capacity, facts.min_samples))

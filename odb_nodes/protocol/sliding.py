"""The default alignment policy: sliding windows."""

from math import ceil

from odb_nodes.batching.window import Window
from odb_nodes.protocol.policy import Refill
from odb_nodes.protocol.proposal import Group, Proposal
from odb_nodes.protocol.reports import Facts, Report


class SlidingPolicy:
    """Sliding windows: a rank whose view is open emits full groups and waits for nobody's lengths.

    Each group is the best fill around the oldest sample, and the window is refilled before the
    next. A rank whose view is exhausted drains its window by the minimum partition and splits or
    idles to keep pace. While any view is open, T is the capacity; then it is what the fullest
    rank still needs.
    Source: ours; docs/protocol.md compares it with "tumbling".
    """

    name = "sliding"
    most_steps = 8
    few_samples = 192

    def capacity(self, window: int, steps: int, samples: float) -> int:
        """As many steps as take half a window, by what they took so far; at first a single one.

        Samples of a round are prepared in a burst. Many more than are read ahead would leave the
        workers idle while the steps of a round train, and the first step waiting for all of them.
        A few do no harm, and the last round packs better the more it has.
        """
        if not steps or not samples:
            return 1
        burst = max(window / 2, self.few_samples)
        return min(self.most_steps, ceil(burst * steps / samples))

    def propose(self, window: Window, refill: Refill, capacity: int | None) -> Proposal:
        groups: list[Group] = []
        while refill(window):
            groups.append(window.take_best())
            if len(groups) == (capacity or self.most_steps):
                held = len(window) + sum(map(len, groups))
                report = Report(
                    groups=len(groups), samples=held, capacity=len(groups), exhausted=False
                )
                return Proposal(groups=groups, taken=True, report=report)
        if groups:
            window.put_back(key for group in groups for key in group)
        plan = window.drain_plan()
        return Proposal(
            groups=plan, taken=False, report=Report(groups=len(plan), samples=len(window))
        )

    def target(self, facts: Facts) -> int:
        return facts.min_capacity if facts.any_open else facts.max_groups

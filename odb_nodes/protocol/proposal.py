"""Groups that a rank offers in a round, and how they are settled to the agreed number of steps."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from odb_nodes.batching.window import Window
from odb_nodes.protocol.reports import Report

Group = list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """Groups a rank offers in a round, most wanted first, and what it reports of them.

    Attributes:
        groups: Disjoint, non-empty groups of keys.
        taken: The groups are out of the window already; else they are still in it.
        report: What the other ranks are told.
    """

    groups: list[Group]
    taken: bool
    report: Report

    def lacking_filler(self) -> "Proposal":
        """The same of a rank that has no sample which it could mask in an IDLE step."""
        return replace(self, report=replace(self.report, lacks_filler=True))

    def settle(self, window: Window, steps: int) -> list[Group]:
        """This rank's part of the round; the rest of the groups returns to the window.

        Returns:
            Exactly ``steps`` groups, heaviest first. With fewer groups than steps the groups are
            split; with fewer samples than steps the last ones are empty, which is IDLE.
        """
        chosen, rest = self.groups[:steps], self.groups[steps:]
        if not self.taken:
            window.remove(key for group in chosen for key in group)
        elif rest:
            window.put_back(key for group in rest for key in group)
        if len(chosen) < steps:
            chosen = split(chosen, steps)
        chosen = sorted(chosen, key=window.weight, reverse=True)
        return chosen + [[] for _ in range(steps - len(chosen))]


def split(groups: Sequence[Group], steps: int) -> list[Group]:
    """Halve the largest groups until there are ``steps``, or until all are single samples."""
    heap = [(-len(group), order, group) for order, group in enumerate(groups)]
    heapq.heapify(heap)
    while heap and len(heap) < steps and -heap[0][0] > 1:
        _, order, group = heap[0]
        half = len(group) // 2
        heapq.heapreplace(heap, (-half, order, group[:half]))
        heapq.heappush(heap, (half - len(group), len(heap) + len(groups), group[half:]))
    return [group for _, _, group in heap]

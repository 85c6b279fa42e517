"""How ranks agree on the steps of a round. Pure: no torch, no content, no communication.

Every rank fills its window and proposes groups; the reports of all ranks are merged into
``Facts`` (an element-wise maximum, so O(1) bytes a rank); a policy turns the facts into ``T``, the
number of steps, and each rank settles its own proposal to T steps. G2 holds because whatever
decides on a further collective is computed from ``Facts`` alone.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np
import numpy.typing as npt

from odb_nodes.cutting import num_tokens
from odb_nodes.grouping import Window
from odb_nodes.permutation import key64, mix64

_NONE = 1 << 62  # "no bound from this rank" where a minimum is taken
Group = list[int]
Refill = Callable[[Window], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What one rank tells the others in a round.

    Attributes:
        groups: Groups it would emit if it were alone; 0 if and only if ``samples`` is 0.
        samples: Samples it holds.
        capacity: Most steps it can take this round, or None for no bound.
        exhausted: Its view has no further sample.
        failed: Its source raised.
        stopping: It wants to end the pass here.
    """

    groups: int = 0
    samples: int = 0
    capacity: int | None = None
    exhausted: bool = True
    failed: bool = False
    stopping: bool = False

    def encode(self, rank: int, agreement: int) -> list[int]:
        """As integers whose element-wise maximum over ranks is ``Facts``; 9 of them, 72 bytes.

        Args:
            rank: This rank.
            agreement: Non-negative digest of what must be equal on all ranks.
        """
        return [
            rank + 1 if self.failed else 0,
            rank + 1 if self.stopping else 0,
            int(not self.exhausted),
            self.groups,
            -(_NONE if self.capacity is None else self.capacity),
            -(self.samples or _NONE),
            int(self.samples == 0),
            agreement,
            -agreement,
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What all ranks know of a round after the exchange.

    Attributes:
        failed_rank: A rank that failed, or None.
        stopping_rank: A rank that stops, or None.
        any_open: Some view has further samples.
        max_groups: Largest number of groups on a rank.
        min_capacity: Smallest capacity, at most ``2**62``.
        min_samples: Smallest number of samples among ranks that have any.
        any_empty: Some rank has none.
        agreed: ``agreement`` was equal on all ranks.
    """

    failed_rank: int | None
    stopping_rank: int | None
    any_open: bool
    max_groups: int
    min_capacity: int
    min_samples: int
    any_empty: bool
    agreed: bool

    @staticmethod
    def decode(maxima: Sequence[int]) -> "Facts":
        """From the element-wise maximum of ``Report.encode`` over all ranks."""
        failed, stopping, is_open, groups, capacity, samples, empty, high, low = maxima
        return Facts(
            failed_rank=failed - 1 if failed else None,
            stopping_rank=stopping - 1 if stopping else None,
            any_open=bool(is_open),
            max_groups=groups,
            min_capacity=-capacity,
            min_samples=-samples,
            any_empty=bool(empty),
            agreed=high == -low,
        )


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
        chosen = sorted(chosen, key=num_tokens, reverse=True)
        return chosen + [[] for _ in range(steps - len(chosen))]


class Policy(Protocol):
    """When windows are refilled, and how many steps a round has."""

    name: str

    def capacity(self, window: int, steps: int, samples: float) -> int | None:
        """Most steps of the next round, unless the user says; None for no bound.

        Args:
            window: Samples buffered a rank.
            steps: Steps of the pass so far.
            samples: Samples that a rank emitted on them, on average over the ranks.
        """

    def propose(self, window: Window, refill: Refill, capacity: int | None) -> Proposal:
        """Fill the window and offer groups.

        Args:
            window: This rank's window.
            refill: Tops the window up; returns whether the view may have more.
            capacity: Most steps of the round, or None for no bound but the policy's own.
        """

    def target(self, facts: Facts) -> int:
        """T, the steps of the round, at least 1. Asked only if some rank has samples."""


class PaperPolicy:
    """Tumbling windows: cut the whole window, emit what all ranks can, recirculate the rest.

    ``T = max(1, min(max groups, min capacity, min samples))`` over ranks that have samples, so
    a rank with fewer groups can always split and is idle only when it is exhausted.
    Source: arXiv 2606.19989, the max-based alignment rule.
    """

    name = "paper"

    def capacity(self, window: int, steps: int, samples: float) -> int | None:
        return None

    def propose(self, window: Window, refill: Refill, capacity: int | None) -> Proposal:
        exhausted = not refill(window)
        groups = sorted(window.partition(), key=num_tokens, reverse=True)  # keep the largest
        report = Report(
            groups=len(groups), samples=len(window), capacity=capacity, exhausted=exhausted
        )
        return Proposal(groups=groups, taken=False, report=report)

    def target(self, facts: Facts) -> int:
        return max(1, min(facts.max_groups, facts.min_capacity, facts.min_samples))


class CarryPolicy:
    """Sliding windows: a rank whose view is open emits full groups and waits for nobody's lengths.

    Each group is the best fill around the oldest sample, and the window is refilled before the
    next. A rank whose view is exhausted drains its window by the minimum partition and splits or
    idles to keep pace. While any view is open, T is the capacity; then it is what the fullest
    rank still needs.
    Source: ours; docs/protocol.md compares it with "paper".
    """

    name = "carry"
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


POLICIES: dict[str, Policy] = {policy.name: policy for policy in (PaperPolicy(), CarryPolicy())}


def plan_steps(facts: Facts, policy: Policy, *, join: bool) -> int:
    """Steps of this round, or 0 if the pass ends here; the same on every rank.

    Joined, a pass ends when no rank has a sample left. Otherwise it ends as soon as some rank has
    none, and no round is longer than the smallest rank can fill, so that no step is ever IDLE.
    """
    if facts.max_groups == 0 or (not join and facts.any_empty):
        return 0
    steps = policy.target(facts)
    return steps if join else min(steps, facts.min_samples)


def steps_to_quota(counts: Sequence[int] | npt.NDArray[np.int64], missing: int) -> int:
    """How many steps of a round to keep: up to the first that reaches a quota, else all.

    Args:
        counts: Samples of each step over all ranks, in the order of emission, ``[T]``.
        missing: Samples that the quota still lacks, at least 1.
    """
    return min(int(np.searchsorted(np.cumsum(counts), missing)) + 1, len(counts))


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


def step_order(steps: int, *parts: int) -> list[int]:
    """A permutation of ``range(steps)`` drawn from integers that all ranks share.

    Each rank sorts its groups by weight first, so that heavy meets heavy across ranks; this order
    then keeps steps from being sorted by length in time.
    """
    noise = mix64(np.arange(steps, dtype=np.uint64) + np.uint64(key64(*parts)))
    return [int(i) for i in np.argsort(noise, kind="stable")]

"""Cutting a window of samples into groups. Pure: knows ages, lengths and costs, no content.

A sample is an ``int`` key, ``length << AGE_BITS | age``: keys sort by length, then by age (the
order of arrival in the window), and carry all that grouping needs.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from odb_nodes.budget import TokenBudget

AGE_BITS = 44
_AGE_MASK = (1 << AGE_BITS) - 1
_BLOCK = 1024  # keys in a block before it splits; lookups and edits then touch one short list


def make_key(length: int, age: int) -> int:
    """Key of a sample of ``length`` tokens that was the ``age``-th to arrive."""
    return length << AGE_BITS | age


def length_of(key: int) -> int:
    """Length in tokens of a key."""
    return key >> AGE_BITS


def age_of(key: int) -> int:
    """Arrival number of a key."""
    return key & _AGE_MASK


class Window:
    """The buffered samples of one rank, in order of length and in order of age.

    Adding, removing and finding cost O(log n) plus an edit of one short block; a best-fill group
    costs O(group).

    Args:
        budget: Limits of a group.
        costs: Further costs of a key (``TokenBudget.costs``), needed if the budget has extras;
            kept up to date by the caller.
    """

    def __init__(
        self, budget: TokenBudget, costs: Mapping[int, tuple[int, ...]] | None = None
    ) -> None:
        self.budget = budget
        self._costs = costs if budget.extra else None
        self._blocks: list[list[int]] = [[]]
        self._lasts: list[int] = []  # largest key of every block but the last
        self._ages: deque[int] = deque()  # keys by age; may hold keys that are gone
        self._live: set[int] = set()
        self._plan: list[list[int]] | None = None  # of drain_plan, while nothing is added

    def __len__(self) -> int:
        return len(self._live)

    def add(self, key: int) -> None:
        """Add the youngest sample."""
        self._plan = None
        self._ages.append(key)
        self._insert(key)

    def put_back(self, keys: Iterable[int]) -> None:
        """Return samples that were taken; they keep their age. O(n log n)."""
        self._plan = None
        for key in keys:
            self._insert(key)
        self._ages = deque(sorted(self._live, key=age_of))

    def by_age(self) -> list[int]:
        """All keys, oldest first."""
        live = self._live
        self._ages = deque(key for key in self._ages if key in live)
        return list(self._ages)

    def remove(self, keys: Iterable[int]) -> None:
        """Remove samples."""
        for key in keys:
            self._live.remove(key)
            block = self._blocks[bisect_left(self._lasts, key)]
            del block[bisect_left(block, key)]

    def partition(self) -> list[list[int]]:
        """All samples cut into the fewest groups; the window is left as it is.

        Longest first: a group opens at the longest sample left and takes as many as fit. No
        partition under the padded-area limit has fewer groups: each group's longest sample is at
        least as long as in any other partition, so the groups before it hold the most possible.
        Source: arXiv 2606.19989, the sort-and-cut rule.
        """
        keys = [key for block in self._blocks for key in block]
        keys.reverse()
        if self._costs is None:
            return _cut(keys, self.budget)
        return _cut_with_costs(keys, self.budget, self._costs)

    def drain_plan(self) -> list[list[int]]:
        """``partition`` in the order of each group's oldest sample, which knows no length.

        Cached: while groups are only removed from its front, what is left of the plan is the plan
        of what is left, because a group's extent depends on nothing longer.
        """
        if self._plan is None:
            self._plan = sorted(self.partition(), key=lambda group: min(map(age_of, group)))
        gone = 0
        while gone < len(self._plan) and self._plan[gone][0] not in self._live:
            gone += 1
        del self._plan[:gone]
        return self._plan

    def take_best(self) -> list[int]:
        """Remove and return the group with the most real tokens that holds the oldest sample.

        Of all ranges of the length-sorted window that contain the oldest sample and fit the
        budget. Every call removes the oldest, so a sample waits for at most as many calls as
        the window held samples when it arrived.
        """
        self._plan = None
        oldest = self._oldest()
        block = bisect_left(self._lasts, oldest)
        at = bisect_left(self._blocks[block], oldest)
        reach = self.budget.most(oldest >> AGE_BITS)
        left = self._before(block, at, reach - 1)
        right = self._after(block, at, reach)
        if self._costs is None:
            taken = _best_range(left, right, self.budget)
        else:
            taken = _best_range_with_costs(left, right, self.budget, self._costs)
        self._delete_run(taken)
        return taken

    def _oldest(self) -> int:
        ages, live = self._ages, self._live
        while ages[0] not in live:
            ages.popleft()
        return ages[0]

    def _insert(self, key: int) -> None:
        block = bisect_left(self._lasts, key)
        keys = self._blocks[block]
        insort(keys, key)
        self._live.add(key)
        if len(keys) > _BLOCK:
            half = len(keys) // 2
            self._blocks.insert(block + 1, keys[half:])
            del keys[half:]
            self._lasts.insert(block, keys[-1])

    def _before(self, block: int, at: int, count: int) -> list[int]:
        """Up to ``count`` keys before a place, in ascending order."""
        out = self._blocks[block][max(0, at - count) : at]
        while len(out) < count and block:
            block -= 1
            out = self._blocks[block][-(count - len(out)) :] + out
        return out

    def _after(self, block: int, at: int, count: int) -> list[int]:
        """Up to ``count`` keys from a place on, in ascending order."""
        out = self._blocks[block][at : at + count]
        while len(out) < count and block + 1 < len(self._blocks):
            block += 1
            out = out + self._blocks[block][: count - len(out)]
        return out

    def _delete_run(self, run: Sequence[int]) -> None:
        """Remove keys that are neighbours in order of length."""
        block, left = bisect_left(self._lasts, run[0]), len(run)
        while left:
            keys = self._blocks[block]
            at = bisect_left(keys, run[0]) if left == len(run) else 0
            size = min(left, len(keys) - at)
            del keys[at : at + size]
            left -= size
            if not keys and len(self._blocks) > 1:
                del self._blocks[block]
                del self._lasts[min(block, len(self._lasts) - 1)]
            else:
                block += 1
        self._live.difference_update(run)


def _cut(keys: list[int], budget: TokenBudget) -> list[list[int]]:
    """Cut keys in descending order into the fewest groups."""
    groups, start = [], 0
    while start < len(keys):
        stop = start + budget.most(keys[start] >> AGE_BITS)
        groups.append(keys[start:stop])
        start = stop
    return groups


def _cut_with_costs(
    keys: list[int], budget: TokenBudget, costs: Mapping[int, tuple[int, ...]]
) -> list[list[int]]:
    groups: list[list[int]] = []
    room = 0
    spent: list[int] = []
    for key in keys:
        after = [a + b for a, b in zip(spent, costs[key], strict=True)] if room else []
        if room and all(a <= b for a, b in zip(after, budget.totals, strict=True)):
            groups[-1].append(key)
            spent, room = after, room - 1
        else:
            groups.append([key])
            spent, room = list(costs[key]), budget.most(key >> AGE_BITS) - 1
    return groups


def _best_range(left: list[int], right: list[int], budget: TokenBudget) -> list[int]:
    """The best range of ``left + right`` that contains ``right[0]``; see ``Window.take_best``.

    A range is chosen by its longest sample ``right[j]``; it then reaches as far to the left as
    the budget allows. ``reach`` only shrinks as samples get longer, so the loop can stop early.
    """
    tail = list(accumulate([key >> AGE_BITS for key in reversed(left)], initial=0))
    most, best, best_j, best_left, tokens = budget.most, -1, 0, 0, 0
    for j, key in enumerate(right):
        length = key >> AGE_BITS
        room = most(length) - j - 1  # samples that may stand left of right[0]
        if room < 0:
            break
        tokens += length
        if room >= len(tail):
            room = len(tail) - 1
        total = tokens + tail[room]
        if total > best:
            best, best_j, best_left = total, j, room
    return left[len(left) - best_left :] + right[: best_j + 1]


def _best_range_with_costs(
    left: list[int], right: list[int], budget: TokenBudget, costs: Mapping[int, tuple[int, ...]]
) -> list[int]:
    """As ``_best_range`` under further limits: the left end moves right until all sums fit."""
    keys, at = left + right, len(left)
    start, tokens, best = 0, sum(key >> AGE_BITS for key in left), -1
    spent = [sum(column) for column in zip(*(costs[key] for key in left), strict=True)]
    spent = spent or [0] * len(budget.totals)
    best_range = slice(at, at + 1)
    for stop in range(at, len(keys)):
        tokens += keys[stop] >> AGE_BITS
        spent = [a + b for a, b in zip(spent, costs[keys[stop]], strict=True)]
        most = budget.most(keys[stop] >> AGE_BITS)
        while start <= stop and (
            stop - start + 1 > most or any(a > b for a, b in zip(spent, budget.totals, strict=True))
        ):
            tokens -= keys[start] >> AGE_BITS
            spent = [a - b for a, b in zip(spent, costs[keys[start]], strict=True)]
            start += 1
        if start > at:
            break
        if tokens > best:
            best, best_range = tokens, slice(start, stop + 1)
    return keys[best_range]

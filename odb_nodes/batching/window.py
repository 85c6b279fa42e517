"""The window: samples buffered on one rank, in order of length and of age. Pure."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, takewhile

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cutting import (
    AGE_BITS,
    age_of,
    best_range,
    best_range_with_costs,
    cut,
    cut_with_costs,
    length_of,
    make_key,
)

__all__ = ["Window", "age_of", "length_of", "make_key"]
_BLOCK = 128  # keys in a block before it splits; what a look-up sorts
_FEW = 8  # more than 1 in 8 keys changed: rebuilding all blocks is cheaper than single edits


class Window:
    """The buffered samples of one rank, in order of length and in order of age.

    New samples wait in a list until somebody asks for an order. They then join short blocks that
    divide the keys by size, and a block is sorted when it is looked at; if they are many, one sort
    makes all blocks anew. So a sample costs O(log n) and its part in sorting a short block, and
    its keys, scattered over the memory, are read all at once instead of in search of its place.

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
        self._new: list[int] = []  # by age, not yet in the fields below
        self._size = 0
        self._blocks: list[list[int]] = [[]]  # each in any order
        self._lasts: list[int] = []  # no key of a block is larger; the last block has none
        self._ages: deque[int] = deque()  # keys by age, and among them those of _gone
        self._gone: set[int] = set()  # removed, but not yet from _ages
        self._plan: list[list[int]] | None = None  # of drain_plan, while it holds

    def __len__(self) -> int:
        return self._size + len(self._new)

    def add(self, key: int) -> None:
        """Add the youngest sample."""
        self._new.append(key)

    def put_back(self, keys: Iterable[int]) -> None:
        """Return samples that were taken; they keep their age. O(n log n)."""
        self._settle_new()
        self._plan = None
        ordered = sorted(chain(keys, *self._blocks))
        self._rebuild(ordered)
        self._ages = deque(sorted(ordered, key=age_of))
        self._gone.clear()
        self._size = len(ordered)

    def remove(self, keys: Iterable[int]) -> None:
        """Remove samples, all of which must be here."""
        self._settle_new()
        gone = set(keys)
        self._plan = self._plan_without(gone)
        self._gone |= gone
        self._size -= len(gone)
        if len(gone) * _FEW > self._size:
            self._rebuild(sorted(key for key in chain(*self._blocks) if key not in gone))
            self._forget_gone()
            assert len(self._ages) == self._size, "a sample was removed twice"
            return
        for key in gone:
            self._blocks[bisect_left(self._lasts, key)].remove(key)

    def partition(self) -> list[list[int]]:
        """All samples cut into the fewest groups; the window is left as it is.

        Longest first: a group opens at the longest sample left and takes as many as fit. No
        partition under the padded-area limit has fewer groups: each group's longest sample is at
        most as long as in any other partition, since the groups before it hold the most possible.
        Source: arXiv 2606.19989, the sort-and-cut rule.
        """
        self._settle_new()
        keys = sorted(chain(*self._blocks), reverse=True)
        if self._costs is None:
            return cut(keys, self.budget)
        return cut_with_costs(keys, self.budget, self._costs)

    def drain_plan(self) -> list[list[int]]:
        """``partition`` in the order of each group's oldest sample, which knows no length."""
        self._settle_new()
        if self._plan is None:
            self._plan = sorted(self.partition(), key=lambda group: min(map(age_of, group)))
        return self._plan

    def take_best(self) -> list[int]:
        """Remove and return the group with the most real tokens that holds the oldest sample.

        Of all ranges of the length-sorted window that contain the oldest sample and fit the
        budget. Every call removes the oldest, so a sample waits for fewer calls than the window
        held samples when it arrived.
        """
        self._settle_new()
        self._plan = None
        oldest = self._oldest()
        block = bisect_left(self._lasts, oldest)
        at = bisect_left(self._sorted(block), oldest)
        reach = self.budget.most(oldest >> AGE_BITS)
        left = self._before(block, at, reach - 1)
        right = self._after(block, at, reach)
        if self._costs is None:
            taken = best_range(left, right, self.budget)
        else:
            taken = best_range_with_costs(left, right, self.budget, self._costs)
        self._delete_run(taken)
        return taken

    def _plan_without(self, gone: set[int]) -> list[list[int]] | None:
        """The drain plan after a removal, if it is known.

        Once its first groups are gone, the others are the plan of what is left, because a group's
        extent depends on nothing longer. Further limits break that: a group may be short because
        its neighbour did not fit.
        """
        if self._plan is None or self._costs is not None:
            return None
        front = list(takewhile(gone.issuperset, self._plan))
        return self._plan[len(front) :] if sum(map(len, front)) == len(gone) else None

    def _settle_new(self) -> None:
        """Give the new samples their places in the orders of length and age."""
        if not self._new:
            return
        new, self._new, self._plan = self._new, [], None
        self._size += len(new)
        self._ages.extend(new)
        if len(self._gone) > self._size + _BLOCK:
            self._forget_gone()
        if len(new) * _FEW > self._size:
            self._rebuild(sorted(chain(new, *self._blocks)))
            return
        blocks, lasts = self._blocks, self._lasts
        for key in new:
            block = bisect_left(lasts, key)
            keys = blocks[block]
            keys.append(key)
            if len(keys) > _BLOCK:
                keys.sort()
                half = len(keys) // 2
                blocks.insert(block + 1, keys[half:])
                del keys[half:]
                lasts.insert(block, keys[-1])

    def _rebuild(self, keys: list[int]) -> None:
        """Cut sorted keys into blocks with room to grow."""
        size = max(1, _BLOCK // 2)
        self._blocks = [keys[i : i + size] for i in range(0, len(keys), size)] or [[]]
        self._lasts = [block[-1] for block in self._blocks[:-1]]

    def _forget_gone(self) -> None:
        gone = self._gone
        self._ages = deque(key for key in self._ages if key not in gone)
        gone.clear()

    def _oldest(self) -> int:
        ages, gone = self._ages, self._gone
        while (key := ages.popleft()) in gone:
            gone.remove(key)
        ages.appendleft(key)
        return key

    def _sorted(self, block: int) -> list[int]:
        keys = self._blocks[block]
        keys.sort()
        return keys

    def _before(self, block: int, at: int, count: int) -> list[int]:
        """Up to ``count`` keys before a place, in ascending order."""
        out = self._blocks[block][max(0, at - count) : at]
        while len(out) < count and block:
            block -= 1
            out = self._sorted(block)[-(count - len(out)) :] + out
        return out

    def _after(self, block: int, at: int, count: int) -> list[int]:
        """Up to ``count`` keys from a place on, in ascending order."""
        out = self._blocks[block][at : at + count]
        while len(out) < count and block + 1 < len(self._blocks):
            block += 1
            out += self._sorted(block)[: count - len(out)]
        return out

    def _delete_run(self, run: Sequence[int]) -> None:
        """Remove keys that are neighbours in order of length; their blocks are sorted."""
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
        self._gone.update(run)
        self._size -= len(run)

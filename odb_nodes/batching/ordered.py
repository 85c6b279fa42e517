"""Keys in order of length and in order of age, with quick look-up, insertion and removal."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from odb_nodes.batching.keys import age_of

_BLOCK = 128  # keys in a block before it splits
_FEW = 8  # more than 1 in 8 keys changed: rebuilding all blocks is cheaper than single edits
_SKIP = 8  # buried keys that a look-up steps over before it clears their block of them


class OrderedKeys:
    """The keys of the samples in a window.

    New keys wait in a list until somebody asks for an order. They then join short sorted blocks
    that divide the keys by size; if they are many, one sort makes all blocks anew. So a key costs
    O(log n), and the keys, scattered over the memory, are read all at once instead of in search of
    their places. A removed key may stay where it is for a while: one that left by length stays
    among the ages ("gone"), one that left by age in its block ("buried").
    """

    def __init__(self, keys: Iterable[int] = ()) -> None:
        self._new: list[int] = list(keys)  # by age, not yet in the fields below
        self._size = 0
        self._blocks: list[list[int]] = [[]]
        self._lasts: list[int] = []  # no key of a block is larger; the last block has none
        self._ages: deque[int] = deque()  # keys by age, and among them those of _gone
        self._gone: set[int] = set()
        self._buried: set[int] = set()

    def __len__(self) -> int:
        return self._size + len(self._new)

    def add(self, key: int) -> None:
        """Add the youngest key."""
        self._new.append(key)

    def put_back(self, keys: Iterable[int]) -> None:
        """Return keys that were removed; they keep their age. O(n log n)."""
        self._settle_new()
        ordered = sorted(chain(keys, self._in_blocks()))
        self._rebuild(ordered)
        self._ages = deque(sorted(ordered, key=age_of))
        self._gone.clear()
        self._size = len(ordered)

    def remove(self, keys: Iterable[int]) -> None:
        """Remove keys, all of which must be here."""
        self._settle_new()
        gone = set(keys)
        if len(gone) * _FEW > self._size - len(gone):
            self._gone |= gone
            self._size -= len(gone)
            self._rebuild([key for key in self._in_blocks() if key not in gone])
            self._forget_gone()
            assert len(self._ages) == self._size, "a sample was removed twice"
            return
        for key in gone:
            block = bisect_left(self._lasts, key)
            self._pop(block, bisect_left(self._blocks[block], key))

    def ascending(self) -> list[int]:
        """All keys, the shortest first."""
        self._settle_new()
        return self._in_blocks()

    def oldest_first(self) -> Iterator[int]:
        """All keys by age; nothing may change meanwhile."""
        self._settle_new()
        gone = self._gone
        return (key for key in self._ages if key not in gone)

    def pop_oldest(self, count: int) -> None:
        """Remove the ``count`` oldest keys."""
        self._settle_new()
        ages, gone, buried = self._ages, self._gone, self._buried
        self._size -= count
        while count:
            key = ages.popleft()
            if key in gone:
                gone.remove(key)
            else:
                buried.add(key)
                count -= 1
        if len(buried) > self._size + _BLOCK:
            self._rebuild(self._in_blocks())

    def pop_largest(
        self, below: int, allowed: Callable[[int], bool] | None = None, tries: int = 1
    ) -> int | None:
        """Remove and return the largest key less than ``below``, or None.

        Args:
            below: Bound of the key.
            allowed: What else must hold for it.
            tries: After so many keys that were not allowed, none is returned.
        """
        self._settle_new()
        buried, block = self._buried, bisect_left(self._lasts, below)
        at = bisect_left(self._blocks[block], below)
        skipped = 0
        while at or block:
            if not at:
                block -= 1
                at, skipped = len(self._blocks[block]), 0
                continue
            at -= 1
            key = self._blocks[block][at]
            if key in buried:
                skipped += 1
                if skipped > _SKIP:
                    self._clear(block)
                    at, skipped = bisect_left(self._blocks[block], key), 0
            elif allowed is None or allowed(key):
                self._pop(block, at)
                return key
            else:
                tries -= 1
                if not tries:
                    return None
        return None

    def around(self, key: int, before: int, after: int) -> tuple[list[int], list[int]]:
        """Neighbours of a key in order of length, ascending.

        Args:
            key: One that is here.
            before: Most keys before it.
            after: Most keys from it on.
        """
        self._settle_new()
        if self._buried:
            self._rebuild(self._in_blocks())
        block = bisect_left(self._lasts, key)
        at = bisect_left(self._blocks[block], key)
        return self._before(block, at, before), self._after(block, at, after)

    def remove_run(self, run: Sequence[int]) -> None:
        """Remove keys that are neighbours in order of length, as ``around`` found them."""
        block, left = bisect_left(self._lasts, run[0]), len(run)
        while left:
            keys = self._blocks[block]
            at = bisect_left(keys, run[0]) if left == len(run) else 0
            size = min(left, len(keys) - at)
            del keys[at : at + size]
            left -= size
            if not self._close(block):
                block += 1
        self._gone.update(run)
        self._size -= len(run)

    def _settle_new(self) -> None:
        """Give the new keys their places in the orders of length and age."""
        if not self._new:
            return
        new, self._new = self._new, []
        self._size += len(new)
        self._ages.extend(new)
        if len(self._gone) > self._size + _BLOCK:
            self._forget_gone()
        if len(new) * _FEW > self._size:
            self._rebuild(sorted(chain(new, self._in_blocks())))
            return
        blocks, lasts = self._blocks, self._lasts
        for key in new:
            block = bisect_left(lasts, key)
            keys = blocks[block]
            insort(keys, key)
            if len(keys) > _BLOCK:
                self._make_room(block)

    def _make_room(self, block: int) -> None:
        """Clear a full block of buried keys, and split it if that is not enough."""
        self._clear(block)
        keys = self._blocks[block]
        if len(keys) > _BLOCK // 2:
            half = len(keys) // 2
            self._blocks.insert(block + 1, keys[half:])
            del keys[half:]
            self._lasts.insert(block, keys[-1])

    def _clear(self, block: int) -> None:
        buried, keys = self._buried, self._blocks[block]
        if buried:
            found = buried.intersection(keys)
            keys[:] = [key for key in keys if key not in found]
            buried -= found

    def _in_blocks(self) -> list[int]:
        """The keys in the blocks, in order, without buried ones."""
        buried = self._buried
        keys = list(chain(*self._blocks))
        return [key for key in keys if key not in buried] if buried else keys

    def _rebuild(self, keys: list[int]) -> None:
        """Cut sorted keys into blocks with room to grow."""
        size = max(1, _BLOCK // 2)
        self._blocks = [keys[i : i + size] for i in range(0, len(keys), size)] or [[]]
        self._lasts = [block[-1] for block in self._blocks[:-1]]
        self._buried.clear()

    def _forget_gone(self) -> None:
        gone = self._gone
        self._ages = deque(key for key in self._ages if key not in gone)
        gone.clear()

    def _pop(self, block: int, at: int) -> None:
        keys = self._blocks[block]
        self._gone.add(keys.pop(at))
        self._size -= 1
        if not keys:
            self._close(block)

    def _close(self, block: int) -> bool:
        """Take away a block if it is empty and not the only one. Returns whether it was."""
        if self._blocks[block] or len(self._blocks) == 1:
            return False
        del self._blocks[block]
        del self._lasts[min(block, len(self._lasts) - 1)]
        return True

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
            out += self._blocks[block][: count - len(out)]
        return out

"""Pseudo-random order of an epoch, computed on the fly: O(1) memory at any size."""

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
_ROUNDS = 6
_MASK = (1 << 64) - 1


def mix64(x: U64) -> U64:
    """Finaliser of splitmix64, element by element: a bijection that flips half the bits.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key64(*parts: int) -> int:
    """One 64-bit key out of integers; order matters."""
    key = 0
    for part in parts:  # mix64 once more, in plain integers: an array of one costs 10 times more
        key = (key + part * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
        key ^= key >> 31
    return key


class Permutation:
    """A bijection of ``range(size)`` that needs no table.

    A Feistel network over ``a * b >= size`` cells with ``a = ceil(sqrt(size))``: each round adds
    a hash of one coordinate to the other, which can be undone, hence a bijection. Fewer than
    ``a`` cells lie outside the range; those walk on until they are inside.

    Args:
        size: Number of elements, at least 0.
        key: Chooses the order; the same key gives the same order on every machine.
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        side = int(np.ceil(np.sqrt(size))) if size else 1
        self._a = np.uint64(max(1, side))
        self._b = np.uint64(max(1, -(-size // max(1, side))))
        self._keys = [np.uint64(key64(key, i)) for i in range(_ROUNDS)]

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Map positions to elements, both in ``[0, size)``; shape is kept."""
        out = self._once(positions.astype(np.uint64))
        outside = np.flatnonzero(out >= np.uint64(self.size))
        while outside.size:
            out[outside] = self._once(out[outside])
            outside = outside[out[outside] >= np.uint64(self.size)]
        return out.astype(np.int64)

    def _once(self, x: U64) -> U64:
        left, right = x % self._a, x // self._a
        for i in range(0, _ROUNDS, 2):
            left = (left + mix64(right ^ self._keys[i]) % self._a) % self._a
            right = (right + mix64(left ^ self._keys[i + 1]) % self._b) % self._b
        return right * self._a + left

"""Keys of buffered samples: their length and their age in one integer.

A sample is an ``int`` key, ``length << AGE_BITS | age``: keys sort by length, then by age (the
order of arrival in the window), and carry all that grouping needs.
"""

from collections.abc import Iterable

AGE_BITS = 44
_AGE_MASK = (1 << AGE_BITS) - 1


def make_key(length: int, age: int) -> int:
    """Key of a sample of ``length`` tokens that was the ``age``-th to arrive."""
    return length << AGE_BITS | age


def length_of(key: int) -> int:
    """Length in tokens of a key."""
    return key >> AGE_BITS


def age_of(key: int) -> int:
    """Arrival number of a key."""
    return key & _AGE_MASK


def num_tokens(keys: Iterable[int]) -> int:
    """Real tokens of keys; one too many for every ``1 << AGE_BITS`` in the sum of their ages.

    That is none before 10,000 samples in a group follow a billion others, and the sum of the keys
    is had without taking each of them apart.
    """
    return sum(keys) >> AGE_BITS

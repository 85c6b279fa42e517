"""Cutting samples in order of length into groups. Pure: knows ages, lengths and costs, no content.

A sample is an ``int`` key, ``length << AGE_BITS | age``: keys sort by length, then by age (the
order of arrival in the window), and carry all that grouping needs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from odb_nodes.batching.budget import TokenBudget

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


def cut(keys: list[int], budget: TokenBudget) -> list[list[int]]:
    """Cut keys in descending order into the fewest groups."""
    groups, start = [], 0
    while start < len(keys):
        stop = start + budget.most(keys[start] >> AGE_BITS)
        groups.append(keys[start:stop])
        start = stop
    return groups


def cut_with_costs(
    keys: list[int], budget: TokenBudget, costs: Mapping[int, tuple[int, ...]]
) -> list[list[int]]:
    """As ``cut`` under further limits: a group closes at the first key that does not fit."""
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


def best_range(left: list[int], right: list[int], budget: TokenBudget) -> list[int]:
    """The best range of ``left + right`` that contains ``right[0]``; see ``Window.take_best``.

    A range is chosen by its longest sample ``right[j]``; it then reaches as far to the left as the
    budget allows. Samples with room for equally many need not be tried one by one: each next one
    takes the place of one from the left, all of which are shorter, as ``right[0]`` is the oldest.
    """
    max_tokens, far, end = budget.max_tokens, len(left), len(right)
    most = budget.max_samples or far + end
    at, count, keys = 0, 0, sum(left)  # the range left[at:] + right[:count], and its sum
    best, best_at, best_count = -1, 0, 0
    while count < end:
        fit = max_tokens // (right[count] >> AGE_BITS) or 1
        if fit > most:
            fit = most
        if fit <= count:
            break
        start = count
        longer = (max_tokens // fit + 1) << AGE_BITS
        count = bisect_left(right, longer, count + 1, fit if fit < end else end)
        keys += sum(right[start:count])
        if far - at > fit - count:
            start, at = at, far - fit + count
            keys -= sum(left[start:at])
        if keys >> AGE_BITS > best:
            best, best_at, best_count = keys >> AGE_BITS, at, count
    return left[best_at:] + right[:best_count]


def best_range_with_costs(
    left: list[int], right: list[int], budget: TokenBudget, costs: Mapping[int, tuple[int, ...]]
) -> list[int]:
    """As ``best_range`` under further limits: the left end moves right until all sums fit."""
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

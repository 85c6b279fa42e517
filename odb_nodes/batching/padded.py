"""Padded rows: a group takes its number of samples times the longest. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.keys import AGE_BITS, num_tokens
from odb_nodes.batching.layout import Limits
from odb_nodes.batching.ordered import OrderedKeys


@dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """Each sample is a row, padded to the longest: samples of like length form a group.

    Attributes:
        cost: What a row costs the model; only told, groups are cut by area.
    """

    cost: Cost = field(default_factory=Cost)
    name = "padded"

    @property
    def shares_cost(self) -> bool:
        """If it is more than tokens, which the totals tell anyway."""
        return self.cost.slope > 0

    @property
    def has_target(self) -> bool:
        """No: rows of like length cost alike, and groups are cut by area."""
        return False

    def take(self, keys: OrderedKeys, limits: Limits) -> list[int]:
        """The group with the most real tokens around the oldest sample.

        Of all ranges of the length-sorted window that contain the oldest sample and fit the budget.
        """
        oldest = next(keys.oldest_first())
        reach = limits.budget.most(oldest >> AGE_BITS)
        left, right = keys.around(oldest, reach - 1, reach)
        if limits.further is None:
            taken = best_range(left, right, limits.budget)
        else:
            taken = best_range_with_costs(left, right, limits.budget, limits.further)
        keys.remove_run(taken)
        return taken

    def partition(self, keys: OrderedKeys, limits: Limits) -> list[list[int]]:
        """The fewest groups that hold all samples.

        Longest first: a group opens at the longest sample left and takes as many as fit. No
        partition under the padded-area limit has fewer groups: each group's longest sample is at
        most as long as in any other partition, since the groups before it hold the most possible.
        Source: arXiv 2606.19989, the sort-and-cut rule.
        """
        descending = keys.ascending()[::-1]
        if limits.further is None:
            return cut(descending, limits.budget)
        return cut_with_costs(descending, limits.budget, limits.further)

    def is_stable(self, limits: Limits) -> bool:
        """A group's extent depends on nothing longer. Further limits break that.

        A group may be short because its neighbour did not fit.
        """
        return limits.further is None

    def weight(self, group: Sequence[int]) -> float:
        """Real tokens."""
        return num_tokens(group)

    def size(self, lengths: Sequence[int], budget: TokenBudget) -> int:
        """The area, count times longest."""
        return len(lengths) * max(map(budget.padded, lengths), default=0)

    def group_cost(self, lengths: Sequence[int]) -> int:
        """Every row costs what the longest costs: attention sees the padding, too."""
        return round(len(lengths) * self.cost.of(max(lengths, default=0)))

    def longest(self, budget: TokenBudget) -> int:
        """The budget: a batch of one row."""
        return budget.max_tokens

    def describe(self) -> str:
        return ""  # as before there were layouts, so that states go on


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
    """The best range of ``left + right`` that contains ``right[0]``; see ``Padded.take``.

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

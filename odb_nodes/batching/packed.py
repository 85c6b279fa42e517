"""Packed rows: documents one after the other, a group takes the sum of their tokens. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.keys import AGE_BITS
from odb_nodes.batching.layout import Limits
from odb_nodes.batching.ordered import OrderedKeys

# The end of a row is filled by best fit: the last 15 %, but no more than two of its documents. More
# would choose samples by their length, which would correlate length with time, as the largest that
# fit are taken first; it would fill a row no better.
_BEST_FIT_PART = 0.15
_BEST_FIT_DOCUMENTS = 2
_TRIED = 16  # samples that would fit but for a further limit, before a row counts as full


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """Rows filled with whole documents: the oldest first, then whatever fits best.

    A row takes samples in order of age until it is full to 85 % or more, then the largest that
    still fits, again and again. A row of 100 tokens and samples of 60, 20, 30, 10 and 4 tokens in
    order of age: 60, 20 (80 of 100, and 30 does not fit), then 10 and 4 by best fit; 30 opens the
    next row.

    With a cost target, "full" also means that the documents cost that much: documents that are
    long, and cost more a token, then form shorter rows, so that all rows take equally long.

    Attributes:
        rows: Rows of a group; each holds at most ``max_tokens // rows`` tokens, and a group lists
            its samples row by row.
        cost: What a document costs the model.
    Raises:
        ValueError: ``rows`` below 1.
    """

    rows: int = 1
    cost: Cost = field(default_factory=Cost)
    name = "packed"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows}")

    @property
    def shares_cost(self) -> bool:
        """Always: it is what evens the ranks out."""
        return True

    @property
    def has_target(self) -> bool:
        """If documents of one length cost other than their tokens."""
        return self.cost.slope > 0

    def take(self, keys: OrderedKeys, limits: Limits) -> list[int]:
        """Fill the rows of one group, one after the other."""
        group = _Group(limits)
        target = inf if limits.target is None else limits.target
        for row in range(1, self.rows + 1):
            before = len(group.keys)
            room = self._fill(keys, group, self.longest(limits.budget), target * row / self.rows)
            if room < 0 or len(group.keys) == before:
                break
        return group.keys

    def partition(self, keys: OrderedKeys, limits: Limits) -> list[list[int]]:
        """``take`` until nothing is left."""
        left, groups = OrderedKeys(keys.oldest_first()), []
        while len(left):
            groups.append(self.take(left, limits))
        return groups

    def is_stable(self, limits: Limits) -> bool:
        """A group depends on what is left when it is cut, on nothing before."""
        return True

    def weight(self, group: Sequence[int]) -> float:
        """The cost."""
        slope, lengths = self.cost.slope, [key >> AGE_BITS for key in group]
        return sum(lengths) + slope * sum([length * length for length in lengths])

    def size(self, lengths: Sequence[int], budget: TokenBudget) -> int:
        """The sum, of lengths as the kernels need them."""
        return sum(map(budget.padded, lengths))

    def group_cost(self, lengths: Sequence[int]) -> int:
        """Documents cost what they cost alone."""
        slope = self.cost.slope
        return round(sum(lengths) + slope * sum([length * length for length in lengths]))

    def longest(self, budget: TokenBudget) -> int:
        """Tokens of a row."""
        return max(1, budget.max_tokens // self.rows)

    def describe(self) -> str:
        return f"{self.name};rows={self.rows};cost={self.cost.describe()}"

    def _fill(self, keys: OrderedKeys, group: "_Group", room: int, target: float) -> int:
        """Fill one row.

        Args:
            keys: What to take from.
            group: Gets the documents.
            room: Tokens of the row.
            target: Cost at which the group is full, so far.
        Returns:
            The tokens left; negative if the group is an over-long sample.
        """
        room = self._fill_by_age(keys, group, room, target)
        cost, allowed = self.cost, group.has_room if group.is_limited else None
        while room > 0:
            left = target - group.cost
            length = room if left == inf else min(room, cost.longest(left))
            key = keys.pop_largest((length + 1) << AGE_BITS, allowed, _TRIED)
            if key is None:
                break
            group.add(key, cost.of(key >> AGE_BITS))
            room -= key >> AGE_BITS
        return room

    def _fill_by_age(self, keys: OrderedKeys, group: "_Group", size: int, target: float) -> int:
        """Take the oldest documents until the row is nearly full. Returns the tokens left."""
        slope, taken, first, spent = self.cost.slope, group.keys, group.cost, group.cost
        room, count, least = size, 0, _BEST_FIT_PART * size
        enough = target if target == inf else target - _BEST_FIT_PART * (target - first)
        for key in keys.oldest_first():
            length = key >> AGE_BITS
            after = spent + length + slope * length * length
            if taken and (
                length > room or after > target or (group.is_limited and not group.has_room(key))
            ):
                break
            group.add(key, after - spent)
            spent, room, count = after, room - length, count + 1
            if (room <= least and _is_for_best_fit(room, size, count)) or (
                spent >= enough and _is_for_best_fit(target - spent, target - first, count)
            ):
                break
        keys.pop_oldest(count)
        return room


def _is_for_best_fit(left: float, size: float, count: int) -> bool:
    """Whether what ``count`` documents leave of ``size`` is no more than two of them."""
    return left * count <= _BEST_FIT_DOCUMENTS * (size - left)


class _Group:
    """A group that is being filled: its samples, what they cost, and the limits beside tokens."""

    def __init__(self, limits: Limits) -> None:
        self.keys: list[int] = []
        self.cost = 0.0
        self._most = limits.budget.max_samples
        self._totals = limits.budget.totals
        self._further: Mapping[int, tuple[int, ...]] | None = limits.further
        self._spent = [0] * len(self._totals)
        self.is_limited = self._most is not None or self._further is not None

    def add(self, key: int, cost: float) -> None:
        self.keys.append(key)
        self.cost += cost
        if self._further is not None:
            self._spent = [a + b for a, b in zip(self._spent, self._further[key], strict=True)]

    def has_room(self, key: int) -> bool:
        """Whether the limits other than tokens and cost allow one more sample."""
        if self._most is not None and len(self.keys) >= self._most:
            return False
        return self._further is None or all(
            spent + more <= total
            for spent, more, total in zip(
                self._spent, self._further[key], self._totals, strict=True
            )
        )

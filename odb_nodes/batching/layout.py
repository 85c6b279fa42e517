"""What a layout decides: which samples of a window form the next group, and what a group costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.ordered import OrderedKeys


@dataclass(slots=True)
class Limits:
    """What holds for the groups of one window.

    Attributes:
        budget: Limits that no group of two or more samples exceeds.
        further: The further costs of every key in the window (``TokenBudget.costs``); None if the
            budget has no such limits.
        target: Cost at which a group is full, as far as the ranks know it; None before that.
    """

    budget: TokenBudget
    further: Mapping[int, tuple[int, ...]] | None = None
    target: float | None = None


class Layout(Protocol):
    """How the samples of a group lie in its tensors, and therefore which form a group.

    The same on all ranks and without state: groups depend on what is passed here alone.
    """

    @property
    def name(self) -> str:
        """Name in ``LAYOUTS``."""

    @property
    def cost(self) -> Cost:
        """What a document costs the model."""

    @property
    def shares_cost(self) -> bool:
        """Whether the ranks tell each other what their groups cost."""

    @property
    def has_target(self) -> bool:
        """Whether groups are full at a cost, not only at the budget."""

    def take(self, keys: OrderedKeys, limits: Limits) -> list[int]:
        """Remove and return the next group, which holds the oldest sample.

        Args:
            keys: The samples of the window, at least one.
            limits: Of a group.
        """

    def partition(self, keys: OrderedKeys, limits: Limits) -> list[list[int]]:
        """All samples cut into groups; ``keys`` is left as it is."""

    def is_stable(self, limits: Limits) -> bool:
        """Whether ``partition`` without some of its groups is the partition of what is left."""

    def weight(self, group: Sequence[int]) -> float:
        """What groups are ranked by, so that heavy ones meet on all ranks."""

    def size(self, lengths: Sequence[int], budget: TokenBudget) -> int:
        """Tokens that documents of these lengths take of ``max_tokens``, 0 for none."""

    def group_cost(self, lengths: Sequence[int]) -> int:
        """Cost of a group of documents of these lengths, in tokens, rounded."""

    def longest(self, budget: TokenBudget) -> int:
        """Most tokens of a document that is not over-long."""

    def describe(self) -> str:
        """Settings as text, equal for equal layouts; goes into states to notice a change."""

"""How many samples fit one batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """One more limit of a group: the sum of ``cost(data)`` over its samples, at most ``total``.

    Attributes:
        cost: Non-negative integer cost of one sample's ``data``, e.g. its vision patches.
        total: Largest sum in a group; a sample that alone exceeds it goes out alone.
    """

    cost: Callable[[Mapping[str, Any]], int]
    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise ValueError(f"total must be at least 1, got {self.total}")


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Limits of one group on one rank.

    Attributes:
        max_tokens: Padded tokens: ``count * longest length`` stays at or below it.
        max_samples: Samples in a group, or None.
        extra: Further limits by name, e.g. ``{"patches": Limit(cost=..., total=4096)}``.
    Raises:
        ValueError: A limit below 1.
    """

    max_tokens: int
    max_samples: int | None = None
    extra: Mapping[str, Limit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"token_budget must be at least 1, got {self.max_tokens}")
        if self.max_samples is not None and self.max_samples < 1:
            raise ValueError(f"max_samples must be at least 1 or None, got {self.max_samples}")

    def most(self, length: int) -> int:
        """How many samples a group may have whose longest is ``length`` tokens; at least 1."""
        count = self.max_tokens // length
        if self.max_samples is not None and count > self.max_samples:
            count = self.max_samples
        return count if count > 1 else 1

    @property
    def totals(self) -> tuple[int, ...]:
        """The largest sums of the further limits, in the order of ``costs``."""
        return tuple(limit.total for limit in self.extra.values())

    def costs(self, data: Mapping[str, Any]) -> tuple[int, ...]:
        """The further costs of one sample, one per entry of ``extra``."""
        return tuple(int(limit.cost(data)) for limit in self.extra.values())

    def describe(self) -> str:
        """Settings as text, equal for equal budgets; goes into states to notice a change."""
        extra = ",".join(f"{name}<={limit.total}" for name, limit in self.extra.items())
        return f"tokens<={self.max_tokens};samples<={self.max_samples};{extra}"

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """Lengths that batches are padded to, so that few different ones occur.

    Attributes:
        multiple: Padded lengths are multiples of this many tokens.
        per_doubling: At most so many padded lengths between a length and its double, so that a
            compiled model sees few shapes; padding grows by at most ``1 / per_doubling``. None
            allows every multiple.
        longest: Rounding up does not pass this length, where given.
    Raises:
        ValueError: A value below 1.
    """

    multiple: int = 1
    per_doubling: int | None = None
    longest: int | None = None

    def __post_init__(self) -> None:
        for name in ("multiple", "per_doubling", "longest"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def up(self, length: int) -> int:
        """The padded length of ``length`` tokens: with 4 per doubling, 1025 to 1280 give 1280."""
        step = self.multiple
        if self.per_doubling is not None and length > 1:
            doubling = 1 << ((length - 1).bit_length() - 1)  # largest power of 2 below length
            step *= -(-doubling // (self.per_doubling * step))
        padded = -(-length // step) * step
        if self.longest is not None and length <= self.longest < padded:
            return self.longest
        return padded


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Limits of one group on one rank.

    Attributes:
        max_tokens: Padded tokens: ``count * longest length`` stays at or below it.
        max_samples: Samples in a group, or None.
        extra: Further limits by name, e.g. ``{"patches": Limit(cost=..., total=4096)}``.
        rounding: What the collate pads to: ``max_tokens`` then holds for that; None: as it is.
    Raises:
        ValueError: A limit below 1.
    """

    max_tokens: int
    max_samples: int | None = None
    extra: Mapping[str, Limit] = field(default_factory=dict)
    rounding: Rounding | None = None

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

    def padded(self, length: int) -> int:
        """Tokens that a row of ``length`` tokens takes in a batch of its own."""
        return length if self.rounding is None else self.rounding.up(length)

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
        text = f"tokens<={self.max_tokens};samples<={self.max_samples};{extra}"
        return text if self.rounding is None else f"{text};{self.rounding}"

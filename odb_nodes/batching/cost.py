"""What a sample costs a model, in tokens: attention makes a long one cost more than its length."""

from dataclasses import dataclass
from math import isfinite, sqrt


@dataclass(frozen=True, slots=True)
class Cost:
    """``per_token * L + per_pair * L * L`` for a document of L tokens.

    Counted in tokens, that is divided by ``per_token``: with ``Cost(1.0, 1e-4)`` two documents of
    1,000 tokens cost 2,200, one of 2,000 costs 2,400.

    Attributes:
        per_token: Of all that a model does token by token (matrices, embedding, head).
        per_pair: Of attention, which sees pairs of tokens of one document; 0 where it sees all
            pairs of a row, whatever documents they are in.
    Raises:
        ValueError: ``per_token`` not positive, or ``per_pair`` negative.
    """

    per_token: float = 1.0
    per_pair: float = 0.0

    def __post_init__(self) -> None:
        if not (isfinite(self.per_token) and self.per_token > 0):
            raise ValueError(f"cost per token must be positive, got {self.per_token}")
        if not (isfinite(self.per_pair) and self.per_pair >= 0):
            raise ValueError(f"cost per pair must be at least 0, got {self.per_pair}")

    @property
    def slope(self) -> float:
        """How much each further token of a document adds to what a token costs."""
        return self.per_pair / self.per_token

    def of(self, length: int) -> float:
        """Cost of one document, in tokens."""
        return length + self.slope * length * length

    def longest(self, room: float) -> int:
        """Tokens of the longest document that costs at most ``room``; 0 if there is none."""
        if room < 1:
            return 0
        # The root of slope * L * L + L = room, in the form that loses no digits for small slopes.
        slope = self.slope
        length = int(2 * room / (1 + sqrt(1 + 4 * slope * room)))
        return length + 1 if length + 1 + slope * (length + 1) ** 2 <= room else length

    def describe(self) -> str:
        """As text, equal for equal ratios."""
        return f"{self.slope:.9g}"


_FINENESS = 256  # a target moves in steps of this part of the budget, so that plans stay a while


def cost_target(total_cost: int, total_tokens: int, max_tokens: int) -> float | None:
    """The cost at which a group is full: that of ``max_tokens`` at the mean cost of a token.

    Args:
        total_cost: Of all groups of all ranks so far, as all ranks know it.
        total_tokens: Real tokens in them.
        max_tokens: Of a group.
    Returns:
        None before the first group.
    """
    if total_tokens == 0:
        return None
    unit = max_tokens / _FINENESS
    return round(total_cost * max_tokens / (total_tokens * unit)) * unit

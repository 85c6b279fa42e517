"""The settings of the alignment: what every rank must have alike. Pure."""

from dataclasses import dataclass
from typing import Any

from odb_nodes.protocol.policies import find_policy
from odb_nodes.protocol.policy import Policy
from odb_nodes.state.counters import Counters


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignmentSettings:
    """Arguments of ``AlignNode``, which describes them, and what follows from them.

    Raises:
        ValueError: An argument out of range.
    """

    join: bool
    policy_name: str
    steps_per_round: int | None
    sample_quota: int | None
    idle: str
    totals: bool

    def __post_init__(self) -> None:
        find_policy(self.policy_name)
        if self.idle not in ("emit", "skip"):
            raise ValueError(f"idle must be 'emit' or 'skip', got {self.idle!r}")
        for name in ("steps_per_round", "sample_quota"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or None, got {value}")
        if self.sample_quota is not None and not self.totals:
            raise ValueError("sample_quota counts over all ranks and needs totals=True")

    @property
    def policy(self) -> Policy:
        """The policy of that name."""
        return find_policy(self.policy_name)

    def capacity(self, window: int, counters: Counters, world_size: int) -> int | None:
        """Most steps of the next round, the same on all ranks if they know the totals."""
        if self.steps_per_round is not None:
            return self.steps_per_round
        samples = counters.total_emitted / (world_size if self.totals else 1)
        return self.policy.capacity(window, counters.steps, samples)

    def order_settings(self, budget: str, window: int) -> dict[str, Any]:
        """What the order of the steps depends on, for a state."""
        return {
            "budget": budget,
            "window": window,
            "policy": self.policy_name,
            "steps_per_round": self.steps_per_round,
        }

    def describe(self) -> str:
        """What else must be equal on all ranks."""
        return f"{self.join} {self.sample_quota} {self.totals}"

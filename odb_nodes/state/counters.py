"""What was delivered in an epoch so far: plain sums, part of the state."""

from dataclasses import dataclass, fields
from typing import Any

from odb_nodes.errors import StateError
from odb_nodes.state.checks import read_count, shorten
from odb_nodes.types import StepInfo


@dataclass(kw_only=True, slots=True)
class Counters:
    """Sums over the delivered steps of an epoch.

    Attributes:
        steps: Steps, IDLE ones included; equal on all ranks.
        idle_steps: Steps on which this rank was IDLE.
        emitted: Samples of this rank.
        num_tokens: Real tokens of this rank.
        num_loss_tokens: Tokens of this rank that carry loss.
        padded_tokens: ``count * longest`` of this rank, summed.
        total_emitted: Samples of all ranks.
        total_tokens: Real tokens of all ranks.
        total_cost: Cost of all ranks' groups.
        rounds: Rounds opened.
        splits: Extra groups made by splitting to keep pace.
        recirculated: Samples offered in a round but kept for a later one.
        digest: Sum of the digests of the positions emitted by this rank, modulo 2**64.
        before_digest: Digest of what was emitted or dropped under earlier world sizes; rank 0 holds
            it for all.
    """

    steps: int = 0
    idle_steps: int = 0
    emitted: int = 0
    num_tokens: int = 0
    num_loss_tokens: int = 0
    padded_tokens: int = 0
    total_emitted: int = 0
    rounds: int = 0
    splits: int = 0
    recirculated: int = 0
    digest: int = 0
    before_digest: int = 0
    total_tokens: int = 0
    total_cost: int = 0

    def add(self, info: StepInfo, digest: int) -> None:
        """Count one delivered step."""
        self.steps += 1
        self.idle_steps += info.idle
        self.emitted += info.num_samples
        self.num_tokens += info.num_tokens
        self.num_loss_tokens += info.num_loss_tokens
        self.padded_tokens += info.padded_tokens
        self.total_emitted += info.total_num_samples
        self.total_tokens += info.total_num_tokens
        self.total_cost += info.total_cost
        self.digest = (self.digest + digest) & ((1 << 64) - 1)

    def to_state(self) -> dict[str, int]:
        """Plain values."""
        return {name: getattr(self, name) for name in _NAMES}  # asdict takes 10 times longer

    @staticmethod
    def from_state(state: Any) -> "Counters":
        """Inverse of ``to_state``.

        Raises:
            StateError: A counter is missing or not a non-negative integer.
        """
        if isinstance(state, dict):  # states of versions that did not count these
            state = {"total_tokens": 0, "total_cost": 0, **state}
        if not isinstance(state, dict) or set(state) != set(_NAMES):
            raise StateError(f"state counters must be {sorted(_NAMES)}, got {shorten(state)}")
        return Counters(
            **{
                name: read_count(
                    state, name, "state counter", 1 << (64 if "digest" in name else 62)
                )
                for name in state
            }
        )


_NAMES = tuple(field.name for field in fields(Counters))

"""The settings of the alignment: what every rank must have alike. Pure."""

from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from odb_nodes.arguments import boolean, choice, optional_integer
from odb_nodes.protocol.policies import DEFAULT_POLICY, find_policy
from odb_nodes.protocol.policy import Policy
from odb_nodes.state.counters import Counters


class AlignmentOptions(TypedDict, total=False):
    """Keyword arguments that become an ``Alignment``; for signatures that pass them on."""

    join: bool
    policy: str
    steps_per_round: int | None
    sample_quota: int | None
    idle: str
    totals: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """How the ranks of a loader keep in step; equal on all of them.

    Attributes:
        join: A pass ends when every view of every rank is emitted, ranks that run out early
            being IDLE; else as soon as one rank has nothing left, without any IDLE step. What the
            others then still hold is left behind.
        policy: Name of a registered policy: "sliding", or "tumbling", the rule of the paper; see
            ``odb_nodes.protocol.policies``.
        steps_per_round: Most steps between two exchanges; None is the policy's own choice (sliding:
            as many as take half a window, up to 8; tumbling: as many as the window gives).
        sample_quota: End at the first step at which all ranks together have emitted this many
            samples since the start of the iteration, over as many passes as that takes.
        idle: "emit" a masked one-sample batch where a rank has nothing (FSDP and DDP need the
            step to run), or "skip" it.
        totals: Also exchange the totals of ``StepInfo``; without it they are this rank's own.
    Raises:
        ValueError: A value out of range.
    """

    join: bool = True
    policy: str = DEFAULT_POLICY
    steps_per_round: int | None = None
    sample_quota: int | None = None
    idle: str = "emit"
    totals: bool = True

    def __post_init__(self) -> None:
        find_policy(self.policy)
        choice("idle", self.idle, ("emit", "skip"))
        for name in ("join", "totals"):
            object.__setattr__(self, name, boolean(name, getattr(self, name)))
        for name in ("steps_per_round", "sample_quota"):
            value = optional_integer(name, getattr(self, name), least=1)
            object.__setattr__(self, name, value)
        if self.sample_quota is not None and not self.totals:
            raise ValueError("sample_quota counts over all ranks and needs totals=True")

    def capacity(self, window: int, counters: Counters, world_size: int) -> int | None:
        """Most steps of the next round, the same on all ranks if they know the totals."""
        if self.steps_per_round is not None:
            return self.steps_per_round
        samples = counters.total_emitted / (world_size if self.totals else 1)
        return self.rule.capacity(window, counters.steps, samples)

    @property
    def rule(self) -> Policy:
        """The policy of that name."""
        return find_policy(self.policy)

    def describe(self) -> dict[str, Any]:
        """All of it by name, as JSON values."""
        return asdict(self)

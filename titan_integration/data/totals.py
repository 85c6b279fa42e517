"""What a run has trained on so far, and how even and full its steps were.

The totals are kept in checkpoints, and shown while training and at the end.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from odb_nodes.types import StepInfo

_OF_A_RANK = (  # numbers that each rank counts for itself
    "padded_tokens",
    "idle_steps",
    "splits",
    "recirculated",
    "pictures",
    "patches",
    "padded_patches",
    "room",
)
DROP_REASONS = ("filtered", "overlong", "empty", "error")  # as odb_nodes counts them


@dataclass(kw_only=True, slots=True)
class Totals:
    """Counts since the first step of the run, over resumes and changes of world size.

    Attributes:
        samples: Samples trained on, all ranks.
        tokens: Their tokens, all ranks, with the room for black pictures.
        loss_tokens: Those of them that carry loss, all ranks.
        epochs_done: Whole epochs.
        padded_tokens: Tokens with padding of this rank's batches, IDLE ones included.
        idle_steps: IDLE batches of this rank.
        dropped: Samples this rank left out, by reason; of whole epochs.
        splits: Extra groups this rank made by splitting to keep pace; of whole epochs.
        recirculated: Samples this rank offered but kept for a later round; of whole epochs.
        pictures: In this rank's batches.
        patches: Of these pictures.
        padded_patches: What this rank's tower worked on, padding and black pictures included.
        room: Tokens that samples of this rank without a picture count for a black one.
        by_source: Samples and tokens with loss that this rank trained on, by source; empty where
            there is one source only.
    """

    samples: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    epochs_done: int = 0
    padded_tokens: int = 0
    idle_steps: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    splits: int = 0
    recirculated: int = 0
    pictures: int = 0
    patches: int = 0
    padded_patches: int = 0
    room: int = 0
    by_source: dict[str, list[int]] = field(default_factory=dict)

    def add(self, info: StepInfo, padded_tokens: int) -> None:
        """Count a delivered batch of ``padded_tokens`` tokens, padding included."""
        self.samples += info.total_num_samples
        self.tokens += info.total_num_tokens
        self.loss_tokens += info.total_num_loss_tokens
        self.padded_tokens += padded_tokens
        self.idle_steps += info.idle

    def add_pictures(self, *, pictures: int, patches: int, padded_patches: int, room: int) -> None:
        """Count what the tower gets of a delivered batch."""
        self.room += room
        self.pictures += pictures
        self.patches += patches
        self.padded_patches += padded_patches

    def add_source(self, name: str, samples: int, loss_tokens: int) -> None:
        """Count what a delivered batch holds of one source."""
        before = self.by_source.get(name, [0, 0])
        self.by_source[name] = [before[0] + samples, before[1] + loss_tokens]

    def with_epoch(self, progress: Mapping[str, Any]) -> "Totals":
        """A copy that also counts an epoch's ``dropped``, ``splits`` and ``recirculated``."""
        return replace(
            self,
            dropped=dict(Counter(self.dropped) + Counter(progress["dropped"])),
            splits=self.splits + progress["splits"],
            recirculated=self.recirculated + progress["recirculated"],
        )

    @property
    def real_tokens(self) -> int:
        """Tokens of the samples; meaningful on merged counts, as the next ones."""
        return self.tokens - self.room

    @property
    def padding_ratio(self) -> float:
        """Part of the batches' tokens that is padding."""
        return 1 - self.real_tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def tower_padding_ratio(self) -> float:
        """Part of the tower's patches that is of no picture."""
        return 1 - self.patches / self.padded_patches if self.padded_patches else 0.0

    @property
    def num_dropped(self) -> int:
        """Samples left out, for whatever reason."""
        return sum(self.dropped.values())


def merge(totals: Sequence[Totals]) -> Totals:
    """The counts of all ranks as one: what is counted a rank is summed, the rest is equal."""
    return replace(
        totals[0],
        **{name: sum(getattr(t, name) for t in totals) for name in _OF_A_RANK},
        dropped=dict(sum((Counter(t.dropped) for t in totals), Counter())),
        by_source={
            name: [sum(column) for column in zip(*counts, strict=True)]
            for name in totals[0].by_source
            for counts in [[t.by_source.get(name, [0, 0]) for t in totals]]
        },
    )


def share(merged: Totals, rank: int) -> Totals:
    """Undo :func:`merge` for one rank of any world: rank 0 goes on with the summed counts."""
    if rank == 0:
        return replace(merged, dropped=dict(merged.dropped), by_source=dict(merged.by_source))
    return replace(merged, dropped={}, by_source={}, **dict.fromkeys(_OF_A_RANK, 0))


@dataclass(slots=True)
class Load:
    """Sums over the steps of this rank since the process started.

    Attributes:
        steps: Steps.
        fill: Of ``StepInfo.fill``.
        cost: Of all ranks' cost.
        slowest: The same, had every rank had as much as the one that had most.
    """

    steps: int = 0
    fill: float = 0.0
    cost: float = 0.0
    slowest: float = 0.0

    def add(self, info: StepInfo) -> None:
        """Count one step."""
        self.steps += 1
        self.fill += info.fill
        self.cost += info.total_cost
        self.slowest += info.total_cost * (info.slowest_over_mean or 1.0)

    def since(self, before: "Load") -> dict[str, float]:
        """Averages per step since an earlier moment: fill, cost of a step, slowest over mean."""
        steps, cost = self.steps - before.steps, self.cost - before.cost
        return {
            "fill": (self.fill - before.fill) / max(1, steps),
            "cost": cost / max(1, steps),
            "slowest_over_mean": (self.slowest - before.slowest) / cost if cost else 1.0,
        }

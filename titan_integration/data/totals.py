"""What a run has trained on so far: kept in checkpoints, shown while training and at the end."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from odb_nodes.types import StepInfo

DROP_REASONS = ("filtered", "overlong", "empty", "error")  # as odb_nodes counts them


@dataclass(kw_only=True, slots=True)
class Totals:
    """Counts since the first step of the run, over resumes and changes of world size.

    Attributes:
        samples: Samples trained on, all ranks.
        tokens: Their real tokens, all ranks.
        loss_tokens: Those of them that carry loss, all ranks.
        epochs_done: Whole epochs.
        padded_tokens: Tokens with padding of this rank's batches, IDLE ones included.
        idle_steps: IDLE batches of this rank.
        dropped: Samples this rank left out, by reason; of whole epochs.
        splits: Extra groups this rank made by splitting to keep pace; of whole epochs.
        recirculated: Samples this rank offered but kept for a later round; of whole epochs.
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
    by_source: dict[str, list[int]] = field(default_factory=dict)

    def add(self, info: StepInfo, padded_tokens: int) -> None:
        """Count a delivered batch of ``padded_tokens`` tokens, padding included."""
        self.samples += info.total_num_samples
        self.tokens += info.total_num_tokens
        self.loss_tokens += info.total_num_loss_tokens
        self.padded_tokens += padded_tokens
        self.idle_steps += info.idle

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
    def padding_ratio(self) -> float:
        """Part of the batches' tokens that is padding; meaningful on merged counts."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def num_dropped(self) -> int:
        """Samples left out, for whatever reason."""
        return sum(self.dropped.values())


def merge(totals: Sequence[Totals]) -> Totals:
    """The counts of all ranks as one: what is counted a rank is summed, the rest is equal."""
    return replace(
        totals[0],
        padded_tokens=sum(t.padded_tokens for t in totals),
        idle_steps=sum(t.idle_steps for t in totals),
        dropped=dict(sum((Counter(t.dropped) for t in totals), Counter())),
        splits=sum(t.splits for t in totals),
        recirculated=sum(t.recirculated for t in totals),
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
    nothing = {"padded_tokens": 0, "idle_steps": 0, "splits": 0, "recirculated": 0}
    return replace(merged, dropped={}, by_source={}, **nothing)

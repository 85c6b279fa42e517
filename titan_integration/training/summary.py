"""``odb_summary.json``: what a finished run trained on, and whether it was all there was."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from titan_integration.data.totals import Totals

FILE_NAME = "odb_summary.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Counts are over all ranks and resumes; wall time and speed are of the last process.

    Attributes:
        samples_total: Rows times epochs; None where the quota alone ends the run.
        samples_emitted: Samples trained on.
        samples_dropped: Samples left out (no answer, too long, unreadable).
        dropped_by_reason: The same by reason.
        coverage: "exact" where emitted and dropped make up the total, else what is missing.
        steps: Optimizer steps.
        idle_steps: IDLE batches of all ranks.
        padding_ratio: Part of all tokens that was padding.
        real_tokens: Tokens without padding.
        padded_tokens: Tokens with padding.
        real_tokens_per_s: Of all ranks together.
        pictures: Trained on; 0, as the next two, where the model takes none.
        patches: Of these pictures.
        tower_padding_ratio: Part of what the vision tower worked on that was of no picture.
        wall_s: Seconds of training.
        world_size: Data-parallel ranks.
        resumed_from: Step whose checkpoint the last process began with; None: from scratch.
        sources: By name, "samples" and "loss_tokens" trained on, and the "loss" per token at the
            last step that was logged and had any; empty where there is one source only.
    """

    samples_total: int | None
    samples_emitted: int
    samples_dropped: int
    dropped_by_reason: dict[str, int]
    coverage: str
    steps: int
    idle_steps: int
    padding_ratio: float
    real_tokens: int
    padded_tokens: int
    real_tokens_per_s: float
    wall_s: float
    world_size: int
    resumed_from: int | None
    pictures: int = 0
    patches: int = 0
    tower_padding_ratio: float = 0.0
    sources: dict[str, dict[str, float]] = field(default_factory=dict)

    def write(self, folder: str) -> Path:
        """Write to ``folder``; returns the file."""
        path = Path(folder) / FILE_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{FILE_NAME}")  # a full disk must not take the old one
        new.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="ascii")
        os.replace(new, path)
        return path

    def line(self) -> str:
        """The outcome in one line."""
        pictures = (
            f", {self.pictures:,} pictures, tower padding {self.tower_padding_ratio:.1%}"
            if self.pictures
            else ""
        )
        return (
            f"{self.samples_emitted:,} samples in {self.steps:,} steps, coverage {self.coverage}, "
            f"padding {self.padding_ratio:.1%}, {self.real_tokens_per_s:,.0f} real tokens/s"
            f"{pictures}"
        )


def coverage(totals: Totals, samples_total: int | None, *, ended_by: str) -> str:
    """Either "exact", or which part of the run's samples was trained on and what ended it."""
    seen = totals.samples + totals.num_dropped
    if samples_total is not None and seen == samples_total:
        return "exact"
    if samples_total is not None and seen > samples_total:
        return f"wrong: {seen} samples emitted or dropped, of {samples_total}"
    whole = samples_total if samples_total is not None else "any number"
    return f"partial: {seen} of {whole}, ended by {ended_by}"


def by_source(totals: Totals, losses: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The part of the summary that tells sources apart; ``losses`` are the latest known."""
    return {
        name: {"samples": samples, "loss_tokens": loss_tokens}
        | ({"loss": losses[name]} if name in losses else {})
        for name, (samples, loss_tokens) in totals.by_source.items()
    }

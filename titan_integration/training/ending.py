"""How a run ends: what ended it, what it trained on, and why there may be nothing left to do."""

import logging
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.errors import UserError
from titan_integration.training.summary import Summary, by_source, coverage
from titan_integration.vision.sheet import Sheet

logger = logging.getLogger(__name__)


def why_nothing_is_left(odb: OdbDataLoader, epochs: int | None, *, step: int, steps: int) -> str:
    """The reason, for a run that was finished.

    Args:
        odb: That has nothing left.
        epochs: That were asked for.
        step: Steps done.
        steps: That were asked for.
    Raises:
        UserError: Less was asked for than is done.
    """
    if epochs is not None and odb.epochs_begun > epochs:
        raise UserError(
            f"the run has begun epoch {odb.epochs_begun}, beyond data.epochs {epochs}; raise "
            "--data.epochs, or set another --dump_folder"
        )
    if step > steps:
        raise UserError(
            f"the run is at step {step}, beyond training.steps {steps}; raise "
            "--training.steps, or load an earlier one with --checkpoint.load_step"
        )
    return (
        f"Nothing left to train: the run was finished at step {step} with "
        f"{odb.totals.samples:,} samples; raise --data.epochs, --data.sample_quota or "
        "--training.steps to go on"
    )


def sum_up(
    config: Any,
    odb: OdbDataLoader,
    *,
    samples_total: int | None,
    steps: int,
    resumed_from: int | None,
    wall_s: float,
    tokens_before: int,
    source_losses: Mapping[str, float],
    sheet: Sheet | None = None,
) -> None:
    """Write and log the summary of a run that has ended; all ranks together.

    Raises:
        RuntimeError: More was trained on than there is.
    """
    totals = odb.merged_totals()
    ended_by = _ended_by(odb, config.data.sample_quota)
    summary = Summary(
        samples_total=samples_total,
        samples_emitted=totals.samples,
        samples_dropped=totals.num_dropped,
        dropped_by_reason=totals.dropped,
        coverage=coverage(totals, samples_total, ended_by=ended_by),
        steps=steps,
        idle_steps=totals.idle_steps,
        padding_ratio=totals.padding_ratio,
        real_tokens=totals.real_tokens,
        padded_tokens=totals.padded_tokens,
        real_tokens_per_s=(totals.real_tokens - tokens_before) / wall_s,
        pictures=totals.pictures,
        patches=totals.patches,
        tower_padding_ratio=totals.tower_padding_ratio,
        wall_s=wall_s,
        world_size=odb.dp_world_size,
        resumed_from=resumed_from,
        sources=by_source(totals, source_losses),
    )
    if dist.get_rank() == 0:
        path = summary.write(config.dump_folder)
        logger.info(f"{summary.line()}; see {path}")
        picture = None if sheet is None else sheet.save(config.dump_folder)
        if picture is not None:
            logger.info(f"the first batches, as the model saw them: {picture}")
    if config.data.odb.join and summary.coverage.startswith("wrong"):
        raise RuntimeError(f"coverage is {summary.coverage}")


def _ended_by(odb: OdbDataLoader, quota: int | None) -> str:
    if not odb.exhausted:
        return "training.steps"
    filled = quota is not None and odb.totals.samples >= quota
    return "data.sample_quota" if filled else "data.odb.no-join"

"""The first lines of a run: what is trained on what, and about how long."""

import logging
import math
from pathlib import Path
from typing import Any

from titan_integration.data.config import UNLIMITED_STEPS
from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.run import logs

logger = logging.getLogger(__name__)
_LOOKED_AT = 256  # samples that the number of tokens is estimated from


def announce(
    config: Any, odb: OdbDataLoader, *, parameters: int, step: int, accumulation: int
) -> None:
    """Log a few lines; call it on rank 0."""
    data, spec, world = config.data, config.model_spec, odb.dp_world_size
    names = [Path(name).name for name in data.path or data.mix]
    files = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if data.streaming:
        logger.info(f"training {spec.name} {spec.flavor} ({parameters:,} parameters) on {files}")
        _say_where(config, step)
        return
    samples = len(odb.samples)
    per_sample = _mean_tokens(odb)
    budget = data.odb.token_budget
    logger.info(
        f"training {spec.name} {spec.flavor} ({parameters:,} parameters) on {samples:,} "
        f"samples of {files}: about {per_sample * samples:,.0f} tokens per epoch"
    )
    logger.info(
        f"{world} data-parallel rank{'s' if world > 1 else ''}, {budget:,} tokens per rank and "
        f"microbatch, {accumulation} microbatch{'es' if accumulation > 1 else ''} per step: "
        f"{_length(config, per_sample, samples, budget * world * accumulation)}"
    )
    _say_where(config, step)


def _say_where(config: Any, step: int) -> None:
    log = logs.current.path if logs.current is not None else None
    more = f"; all of the log in {log}" if log is not None else ""
    begins = f"going on after step {step}" if step else "beginning with step 1"
    logger.info(f"{begins}, in {config.dump_folder}{more}")


def _mean_tokens(odb: OdbDataLoader) -> float:
    """Of a sample: as the check found it, else from some of them; dropped ones count as 0."""
    samples = odb.samples
    if odb.checked is not None:
        histogram = odb.checked.report.histogram
        return sum(length * number for length, number in histogram.items()) / len(samples)
    lengths = []
    for index in range(0, len(samples), max(1, len(samples) // _LOOKED_AT)):
        try:
            sample = odb.encoder(samples[index])
        except ValueError:
            sample = None  # reported, if at all, by whoever trains on it
        lengths.append(0 if sample is None else len(sample["input_ids"]))
    return sum(lengths) / max(1, len(lengths))


def _length(config: Any, per_sample: float, samples: int, tokens_per_step: int) -> str:
    """About how many steps the run has; a batch is seldom full to the last token."""
    data, steps = config.data, config.training.steps
    goals = [samples * data.num_epochs] if data.num_epochs is not None else []
    goals += [data.sample_quota] if data.sample_quota is not None else []
    about = math.ceil(min(goals) * per_sample / tokens_per_step) if goals else None
    if steps != UNLIMITED_STEPS and (about is None or steps <= about):
        return f"{steps:,} steps"
    return f"at least {about:,} steps"

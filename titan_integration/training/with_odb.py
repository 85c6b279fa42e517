"""Give a torchtitan configuration a ``data`` section, and thereby ODB."""

from dataclasses import fields
from typing import Any

from titan_integration.data.config import UNLIMITED_STEPS
from titan_integration.training.metrics import OdbMetricsProcessor
from titan_integration.training.schedule import SampleLRSchedulers
from titan_integration.training.trainer import OdbTrainer
from titan_integration.training.validator import OdbValidator
from titan_integration.upstream import BaseCheckpointManager, Trainer


def with_odb(config: Trainer.Config, **changes: Any) -> OdbTrainer.Config:
    """The same model, optimizer and parallelism, trained on ODB batches to the end of the data.

    Warm-up and decay keep their part of the run; the global batch keeps its number of gradient
    accumulation steps only if ``training.global_batch_size`` is set to it times the data-parallel
    degree.

    Args:
        config: Any torchtitan configuration; left as it is.
        changes: Fields of the result to set, e.g. ``data=DataConfig(...)``.
    """
    kept = {f.name: getattr(config, f.name) for f in fields(config)}
    schedule = config.lr_scheduler
    steps = schedule.total_steps or config.training.steps
    kept["lr_scheduler"] = SampleLRSchedulers.Config(
        warmup=schedule.warmup_steps / steps,
        decay=schedule.decay_ratio,
        decay_type=schedule.decay_type,
        min_lr_factor=schedule.min_lr_factor,
    )
    kept["metrics"] = OdbMetricsProcessor.Config(**_values(config.metrics))
    kept["validator"] = OdbValidator.Config(**_values(config.validator))
    kept["training"] = type(config.training)(
        **{
            **_values(config.training),
            "local_batch_size": 1,
            "global_batch_size": -1,
            "steps": UNLIMITED_STEPS,
            "disable_cuda_graphs": True,
        }
    )
    checkpoint: BaseCheckpointManager.Config = config.checkpoint
    kept["checkpoint"] = type(checkpoint)(
        **{**_values(checkpoint), "enable": True, "last_save_model_only": False}
    )
    return OdbTrainer.Config(**{**kept, **changes})


def _values(config: Any) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config) if f.init}

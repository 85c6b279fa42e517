"""Everything that this package takes from transformers, TRL and accelerate beyond their manuals.

``tests/hf/test_contract.py`` looks up each of these names, and the lines that are built on, in the
installed version: a port begins there.
"""

import inspect
from typing import Any, cast

from transformers import (
    DataCollatorWithFlattening,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, has_length

__all__ = [
    "PREFIX_CHECKPOINT_DIR",
    "TRAINER_STATE_NAME",
    "PrinterCallback",
    "ProgressCallback",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "average_tokens",
    "deepspeed_config",
    "divides_by_accumulation",
    "has_length",
    "inner_scheduler",
    "jit_callback",
    "lays_end_to_end",
    "parallel_degrees",
    "preparer",
    "shifts_labels",
]

# Methods of Trainer that the mixin overrides or calls though they are not public.
PRIVATE_METHODS = {
    "_save_checkpoint": ["self", "model", "trial"],
    "_save_rng_state": ["self", "output_dir"],
    "_prepare_inputs": ["self", "inputs"],
    "_get_output_dir": ["self", "trial"],
    "_get_train_sampler": ["self", "train_dataset"],
    "_remove_unused_columns": ["self", "dataset", "description"],
    "_get_collator_with_removed_columns": ["self", "data_collator", "description"],
}


def preparer(trainer: Any, dataset: Any) -> tuple[Any, Any]:
    """Dataset and collator without the columns that the model does not take."""
    if hasattr(dataset, "column_names") and hasattr(dataset, "remove_columns"):  # of `datasets`
        return trainer._remove_unused_columns(
            dataset, description="training"
        ), trainer.data_collator
    return dataset, trainer._get_collator_with_removed_columns(
        trainer.data_collator, description="training"
    )


def lays_end_to_end(collator: Any) -> bool:
    """Whether a collator says that it puts all samples into one row, without padding."""
    flattens = isinstance(collator, DataCollatorWithFlattening)
    return flattens or bool(getattr(collator, "padding_free", False))  # of TRL


def unwrapped(trainer: Any) -> Any:
    """The model itself, out of wrappers of accelerate and PEFT."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def shifts_labels(trainer: Any) -> bool:
    """Whether the model's loss leaves out the first label of every row (5.6 does not tell)."""
    if hasattr(trainer, "_loss_shifts_labels"):
        return bool(trainer._loss_shifts_labels)
    model = unwrapped(trainer)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return LOSS_MAPPING.get(str(getattr(model, "loss_type", None))) is ForCausalLMLoss


def divides_by_accumulation(trainer: Any) -> bool:
    """Whether ``training_step`` divides a loss computed without ``num_items_in_batch``.

    It does where the model takes no such argument, unless told that the loss is scaled already.
    """
    told = getattr(trainer, "loss_is_scaled_for_ga", None)
    if told is not None:
        return not told
    return trainer.compute_loss_func is None and not trainer.model_accepts_loss_kwargs


def average_tokens(trainer: Any) -> bool:
    """Whether losses are normalized by the tokens of all ranks."""
    return bool(getattr(trainer.args, "average_tokens_across_devices", True))


def parallel_degrees(trainer: Any) -> dict[str, int]:
    """Degrees of the ways to share one sample's work between ranks, by name."""
    config = getattr(trainer.accelerator, "parallelism_config", None)
    names = ("tp", "cp", "sp", "ep")
    degrees = {name: int(getattr(config, f"{name}_size", 1) or 1) for name in names}
    model_tp = getattr(trainer.model, "tp_size", None) or 1
    return degrees | {"tp": max(degrees["tp"], int(model_tp))}


def deepspeed_config(trainer: Any) -> dict[str, Any] | None:
    """DeepSpeed's configuration, or None where it is not used."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return None if plugin is None else cast(dict[str, Any], plugin.deepspeed_config)


def inner_scheduler(scheduler: Any) -> tuple[Any, bool]:
    """The scheduler under accelerate's wrapper, and whether the Trainer steps it.

    Where DeepSpeed made the optimizer, its engine has stepped the scheduler already.
    """
    inner = getattr(scheduler, "scheduler", scheduler)
    return inner, type(scheduler).__name__ != "DeepSpeedSchedulerWrapper"


def jit_callback(trainer: Any) -> Any:
    """The callback that saves on SIGTERM (``enable_jit_checkpoint``), or None."""
    found = [c for c in trainer.callback_handler.callbacks if hasattr(c, "jit_manager")]
    return found[0] if found else None


def parameters_of(function: Any) -> list[str]:
    """Names of a function's parameters."""
    return list(inspect.signature(function).parameters)

"""What torchtitan 0.3 cannot do with batches of changing shape: refused before it starts."""

import math
from pathlib import Path
from typing import Any

from titan_integration.data.config import UNLIMITED_STEPS, DataConfig
from titan_integration.errors import UserError
from titan_integration.training.dense_attention import DenseFlexAttention
from titan_integration.training.metrics import OdbMetricsProcessor
from titan_integration.training.schedule import SampleLRSchedulers
from titan_integration.training.validator import OdbValidator
from titan_integration.upstream import (
    CheckpointManager,
    ChunkedLossWrapper,
    Decoder,
    DeepEPTokenDispatcher,
    FlexAttention,
    HybridEPTokenDispatcher,
    MinimalAsyncEPTokenDispatcher,
    ScaledDotProductAttention,
    Trainer,
)

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
SAVED = ("dataloader", "optimizer", "lr_scheduler", "train_state")  # and the model's weights
FLEX_BLOCK = 128  # tokens; flex_attention's kernels work on blocks of them
BOUNDED_DISPATCHERS = (
    DeepEPTokenDispatcher.Config,
    HybridEPTokenDispatcher.Config,
    MinimalAsyncEPTokenDispatcher.Config,
)


def length_multiple(config: Trainer.Config, wanted: int) -> int:
    """What every batch length must be a multiple of, in tokens.

    Sequence parallelism splits the length over the TP ranks, the chunked loss into its chunks,
    and flex attention into blocks.
    """
    needs = [max(1, wanted)]
    if config.parallelism.enable_sequence_parallel:
        needs.append(config.parallelism.tensor_parallel_degree)
    if isinstance(config.loss, ChunkedLossWrapper.Config):
        needs.append(config.loss.num_chunks)
    if any(type(c) is not DenseFlexAttention.Config for c in _uses(config, FlexAttention.Config)):
        needs.append(FLEX_BLOCK)
    return math.lcm(*needs)


def check_tokenizer_folder(folder: str) -> None:
    """Raise UserError unless there is a tokenizer in the folder."""
    path = Path(folder)
    why = ""
    if not path.is_dir():
        why = ", which is no folder" if path.exists() else ", which is not there"
    elif not any((path / name).is_file() for name in TOKENIZER_FILES):
        why = f", which has none of {', '.join(TOKENIZER_FILES)}"
    if why:
        raise UserError(
            f"hf_assets_path must be a folder with a tokenizer, got {folder!r}{why}; set "
            "--hf_assets_path"
        )


def check_supported(config: Trainer.Config, data: DataConfig) -> None:
    """Raise UserError, with the remedy, on a configuration that cannot run."""
    if not data.has_rows:
        return
    longest = _model_limit(config)
    if longest is not None and config.training.seq_len > longest:
        raise UserError(
            f"training.seq_len must be at most {longest} (the model's longest sequence), got "
            f"{config.training.seq_len}; set --training.seq_len {longest}"
        )
    _check_excluded(config)
    _check_validation(config, data)
    if not data.odb.enable:
        if config.training.steps == UNLIMITED_STEPS:
            raise UserError(
                "torchtitan's loader repeats the data without end; set --training.steps"
            )
        return
    _check_parallelism(config)
    _check_batches(config, data)
    _check_components(config)
    _check_schedule(config, data)


def _check_schedule(config: Trainer.Config, data: DataConfig) -> None:
    schedule = config.lr_scheduler
    assert isinstance(schedule, SampleLRSchedulers.Config)
    if data.streaming and schedule.unit != "steps" and data.sample_quota is None:
        raise UserError(
            f"a learning rate in {schedule.unit} must know how long the run is, which a stream "
            "does not say: set --data.sample_quota, or --lr_scheduler.unit steps with "
            "--training.steps"
        )


def _check_excluded(config: Trainer.Config) -> None:
    for name in config.checkpoint.exclude_from_loading:
        if name not in SAVED:
            raise UserError(
                f"checkpoint.exclude_from_loading must be of {', '.join(SAVED)}, got {name!r}"
            )


def _check_validation(config: Trainer.Config, data: DataConfig) -> None:
    if not data.has_validation:
        return
    if not config.validator.enable:
        raise UserError("held-out rows need a validator, got none; set --validator.enable")
    got = type(config.validator)
    if not issubclass(got, OdbValidator.Config):
        raise UserError(
            f"validator must be an {OdbValidator.Config.__qualname__} with held-out rows, "
            f"got {got.__qualname__}; see titan_integration.training.with_odb.with_odb"
        )
    _check_degrees(config)  # torchtitan's own batches may have them, these may not


def _check_parallelism(config: Trainer.Config) -> None:
    if not config.training.disable_cuda_graphs:
        raise UserError(
            "ODB batches change shape, which CUDA graphs cannot replay; "
            "set --training.disable_cuda_graphs"
        )
    _check_degrees(config)


def _check_degrees(config: Trainer.Config) -> None:
    for name in ("pipeline_parallel_degree", "context_parallel_degree"):
        degree = getattr(config.parallelism, name)
        if degree > 1:
            raise UserError(
                f"parallelism.{name} must be 1 with ODB, got {degree}; "
                f"set --parallelism.{name} 1 or --data.odb.no-enable"
            )


def _check_batches(config: Trainer.Config, data: DataConfig) -> None:
    odb, seq_len = data.odb, config.training.seq_len
    if config.training.local_batch_size != 1:
        raise UserError(
            "training.local_batch_size must be 1 with ODB (the token budget sizes a batch), got "
            f"{config.training.local_batch_size}; accumulate with --training.global_batch_size"
        )
    if odb.idle != "emit":
        raise UserError(
            f"data.odb.idle must be 'emit' (all ranks run all collectives), got {odb.idle!r}"
        )
    multiple = length_multiple(config, odb.pad_to_multiple_of)
    if seq_len % multiple:
        raise UserError(
            f"training.seq_len must be a multiple of {multiple} (what batch lengths are padded "
            f"to), got {seq_len}; set --training.seq_len {seq_len // multiple * multiple}"
        )
    if odb.layout == "packed" and any(_uses(config, ScaledDotProductAttention.Config)):
        raise UserError(
            "data.odb.layout 'packed' needs flex or varlen attention (SDPA would attend across "
            "samples); set --data.odb.layout padded"
        )
    shards = config.parallelism.tensor_parallel_degree
    if any(_uses(config, *BOUNDED_DISPATCHERS)) and odb.token_budget > seq_len // shards:
        raise UserError(
            f"data.odb.token_budget must be at most {seq_len // shards} (the expert dispatcher's "
            f"capacity, training.seq_len / TP), got {odb.token_budget}"
        )


def _check_components(config: Trainer.Config) -> None:
    wanted: list[tuple[str, type]] = [
        ("checkpoint", CheckpointManager.Config),
        ("metrics", OdbMetricsProcessor.Config),
        ("lr_scheduler", SampleLRSchedulers.Config),
    ]
    for name, kind in wanted:
        got = type(getattr(config, name))
        if not issubclass(got, kind):
            raise UserError(
                f"{name} must be a {kind.__qualname__} with ODB, got {got.__qualname__}; "
                "see titan_integration.training.with_odb.with_odb"
            )


def _model_limit(config: Trainer.Config) -> int | None:
    model = config.model_spec.model if config.model_spec is not None else None
    return model.max_seq_len if isinstance(model, Decoder.Config) else None


def _uses(config: Trainer.Config, *kinds: type) -> list[Any]:
    if config.model_spec is None:
        return []
    model = config.model_spec.model
    return [found for kind in kinds for _, found, _, _ in model.traverse(kind)]

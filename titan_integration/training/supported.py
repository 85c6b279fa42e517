"""What torchtitan 0.3 cannot do with batches of changing shape: refused before it starts."""

import math
from dataclasses import replace
from pathlib import Path

from titan_integration.attention.dense import DenseFlexAttention
from titan_integration.data.config import UNLIMITED_STEPS, DataConfig
from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.data.stream import OdbStreamLoader
from titan_integration.errors import UserError
from titan_integration.training.batches import has_sdpa, is_fixed, layout_of, uses
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
    Trainer,
    TrainingConfig,
)
from titan_integration.vision.families import is_flat, is_recurrent, tower_of, vision_of
from titan_integration.vision.parts import check_parts

_FIXED = "--data.odb.layout packed --data.odb.shape fixed"  # what lifts the bans on changing shapes
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
    if any(type(c) is not DenseFlexAttention.Config for c in uses(config, FlexAttention.Config)):
        needs.append(FLEX_BLOCK)
    return math.lcm(*needs)


def loader_config(config: Trainer.Config, data: DataConfig, purpose: str) -> OdbDataLoader.Config:
    """The loader of ``data``, for what the model and its parallelism ask."""
    model = config.model_spec.model if config.model_spec is not None else None
    kind = OdbStreamLoader if data.streaming else OdbDataLoader
    return kind.Config(
        data=replace(data, odb=replace(data.odb, layout=layout_of(config, data))),
        pad_to_multiple_of=length_multiple(config, data.odb.pad_to_multiple_of),
        vocab_size=getattr(model, "vocab_size", None),
        vision=vision_of(config.model_spec, data),
        flat_tower=is_flat(tower_of(config.model_spec)),
        purpose=purpose,
        check_folder=str(Path(config.dump_folder) / "row_checks"),
    )


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
    _check_pictures(config, data)
    _check_excluded(config)
    _check_validation(config, data)
    if not data.odb.enable:
        if config.training.steps == UNLIMITED_STEPS:
            raise UserError(
                "torchtitan's loader repeats the data without end; set --training.steps"
            )
        return
    _check_layout(config, data)
    _check_parallelism(config, data)
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


def _check_pictures(config: Trainer.Config, data: DataConfig) -> None:
    """What pictures ask of the model, and models that take pictures of the rest."""
    if tower_of(config.model_spec) is None:
        for name in ("image_dir", "min_pixels", "max_pixels"):
            if getattr(data, name) is not None:
                raise UserError(f"data.{name} is for models that take pictures: leave it out")
        if getattr(config, "freeze", None):
            raise UserError("freeze names parts of models that take pictures: leave it out")
        return
    check_parts(getattr(config, "freeze", []))
    for what, wrong, remedy in (
        ("batches of torchtitan's loader", not data.odb.enable, "leave --data.odb.no-enable out"),
        ("a stream", data.streaming, "leave --data.streaming out"),
        ("batches of fixed shape", is_fixed(config, data), "leave --data.odb.shape out"),
        (
            "a pipeline",
            config.parallelism.pipeline_parallel_degree > 1,
            "set --parallelism.pipeline_parallel_degree 1",
        ),
        (
            "attention without document masks beside linear attention",
            has_sdpa(config) and is_recurrent(config.model_spec),
            "take flex or varlen attention",
        ),
    ):
        if wrong:
            raise UserError(f"a model that takes pictures cannot have {what}: {remedy}")


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
    _check_degrees(config, data)  # torchtitan's own batches may have them, these may not


def _check_layout(config: Trainer.Config, data: DataConfig) -> None:
    odb, layout = data.odb, layout_of(config, data)
    if layout == "packed" and has_sdpa(config):
        raise UserError(
            "data.odb.layout 'packed' needs flex or varlen attention (SDPA would attend across "
            "samples); set --data.odb.layout padded"
        )
    if layout == "padded" and (odb.rows > 1 or odb.shape == "fixed"):
        raise UserError(
            "data.odb.rows and data.odb.shape are of packed rows, which need flex or varlen "
            "attention, got a model with SDPA; leave them out, or choose another attention"
        )
    if layout == "packed" and odb.token_budget % odb.rows:
        raise UserError(
            f"data.odb.token_budget must be a multiple of data.odb.rows, got {odb.token_budget} "
            f"and {odb.rows}; set --data.odb.token_budget {odb.token_budget // odb.rows * odb.rows}"
        )
    if is_fixed(config, data):
        _check_fixed(config, data)


def _check_fixed(config: Trainer.Config, data: DataConfig) -> None:
    """A row of fixed shape must be what attention and parallelism ask, and hold any sample."""
    odb, seq_len = data.odb, config.training.seq_len
    row, multiple = odb.token_budget // odb.rows, length_multiple(config, odb.pad_to_multiple_of)
    if row % multiple:
        budget = -(-row // multiple) * multiple * odb.rows
        raise UserError(
            f"a row of fixed shape must be a multiple of {multiple} tokens, got {row}; "
            f"set --data.odb.token_budget {budget}"
        )
    if odb.overlong == "alone" and seq_len > row:
        raise UserError(
            f"training.seq_len must be at most {row} (a row of fixed shape, which must hold the "
            f"longest sample), got {seq_len}; set --training.seq_len {row}, or "
            "--data.odb.overlong drop"
        )


def _check_parallelism(config: Trainer.Config, data: DataConfig) -> None:
    if not config.training.disable_cuda_graphs and not is_fixed(config, data):
        raise UserError(
            "ODB batches change shape, which CUDA graphs cannot replay; "
            f"set --training.disable_cuda_graphs, or {_FIXED}"
        )
    _check_degrees(config, data)


def _check_degrees(config: Trainer.Config, data: DataConfig) -> None:
    parallelism = config.parallelism
    if parallelism.context_parallel_degree > 1:
        raise UserError(
            "parallelism.context_parallel_degree must be 1 with ODB, got "
            f"{parallelism.context_parallel_degree}: it was never seen to run with these batches "
            "(it does not run on a CPU at all); set --parallelism.context_parallel_degree 1 or "
            "--data.odb.no-enable"
        )
    if parallelism.pipeline_parallel_degree > 1 and not is_fixed(config, data):
        raise UserError(
            "parallelism.pipeline_parallel_degree must be 1 with batches that change shape, got "
            f"{parallelism.pipeline_parallel_degree}; set --parallelism.pipeline_parallel_degree "
            f"1, or {_FIXED}, or --data.odb.no-enable"
        )


def _microbatches(config: Trainer.Config) -> int:
    """Batches of the loader in one forward and backward step: more than 1 in a pipeline only."""
    batches: int = config.training.local_batch_size
    return batches if config.parallelism.pipeline_parallel_degree > 1 else 1


def _check_batches(config: Trainer.Config, data: DataConfig) -> None:
    odb, seq_len = data.odb, config.training.seq_len
    if config.training.local_batch_size != _microbatches(config):
        raise UserError(
            "training.local_batch_size must be 1 with ODB (the token budget sizes a batch), got "
            f"{config.training.local_batch_size}; accumulate with --training.global_batch_size"
        )
    if config.parallelism.pipeline_parallel_microbatch_size != 1:
        raise UserError(
            "parallelism.pipeline_parallel_microbatch_size must be 1 with ODB (the token budget "
            f"sizes a microbatch), got {config.parallelism.pipeline_parallel_microbatch_size}; "
            "training.local_batch_size is the number of microbatches"
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
    if uses(config, *BOUNDED_DISPATCHERS):
        _check_capacity(config, data)


def _check_capacity(config: Trainer.Config, data: DataConfig) -> None:
    """Expert dispatchers make room for ``local_batch_size * seq_len / TP`` tokens per rank."""
    shards, seq_len = config.parallelism.tensor_parallel_degree, config.training.seq_len
    fixed = is_fixed(config, data)
    capacity = seq_len if fixed else seq_len // shards
    if data.odb.token_budget > capacity:
        rule = "training.seq_len" if fixed else "training.seq_len / TP"
        remedy = "" if fixed else f", or {_FIXED}, with which training.seq_len is the bound"
        raise UserError(
            f"data.odb.token_budget must be at most {capacity} (the expert dispatcher's "
            f"capacity, {rule}), got {data.odb.token_budget}; set --data.odb.token_budget "
            f"{capacity}{remedy}"
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


def default_training() -> TrainingConfig:
    """A run that the data ends, of batches whose shapes change."""
    return TrainingConfig(local_batch_size=1, steps=UNLIMITED_STEPS, disable_cuda_graphs=True)


def default_checkpoint() -> CheckpointManager.Config:
    """Checkpoints that a run can go on from, also the last one."""
    return CheckpointManager.Config(
        enable=True, interval=500, last_save_model_only=False, initial_load_model_only=False
    )

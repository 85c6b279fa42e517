"""What cannot run with online dynamic batching: refused before training, each in one line."""

from typing import Any

from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from hf_integration.arguments import OdbArguments
from hf_integration.errors import Refusal
from hf_integration.upstream import (
    average_tokens,
    deepspeed_config,
    has_length,
    parallel_degrees,
)

_RATIOS = ("save_steps", "eval_steps", "logging_steps")


def check_arguments(trainer: Any, odb: OdbArguments) -> None:
    """Raise Refusal, with the remedy, on a Trainer that cannot run."""
    args = trainer.args
    _check_processes(trainer)
    if getattr(args, "auto_find_batch_size", False):
        raise Refusal("auto_find_batch_size must be False, got True; set token_budget instead")
    if args.dataloader_drop_last:
        raise Refusal("dataloader_drop_last must be False, got True; every sample is trained on")
    if getattr(args, "packing", False):
        raise Refusal(
            "packing must be False (rows that hold many samples are no samples), got True; "
            "padding_free=True takes many samples in one row without it"
        )
    for name in _RATIOS:
        value = getattr(args, name, None)
        if value is not None and 0 < value < 1:
            raise Refusal(
                f"{name} must be a number of steps (how many there will be is not known before), "
                f"got the ratio {value}; set it to 1 or more"
            )
    _check_schedule(trainer, odb)


def _check_processes(trainer: Any) -> None:
    args = trainer.args
    if args.n_gpu > 1:
        raise Refusal(
            f"one process per GPU is needed, got one for {args.n_gpu} (DataParallel); start it "
            "with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES to one"
        )
    for name, degree in parallel_degrees(trainer).items():
        if degree > 1:
            raise Refusal(
                f"every rank must have samples of its own, got {name}_size={degree}; set it to 1 "
                "(DDP, FSDP and ZeRO are supported)"
            )
    if args.world_size > 1 and not average_tokens(trainer):
        raise Refusal(
            "average_tokens_across_devices must be True (else the loss is not the mean over all "
            "tokens), got False"
        )


def _check_schedule(trainer: Any, odb: OdbArguments) -> None:
    args = trainer.args
    if args.max_steps > 0:
        if odb.warmup_samples is not None:
            raise Refusal(
                f"warmup_samples needs a run that ends by samples, got max_steps={args.max_steps}; "
                "set warmup_steps, or num_train_epochs or sample_quota instead of max_steps"
            )
        return
    if args.warmup_steps >= 1 and odb.warmup_samples is None:
        raise Refusal(
            "warmup_steps must be a ratio below 1 (the learning rate follows the samples), got "
            f"{args.warmup_steps}; set it to a ratio, or warmup_samples"
        )
    if "scheduler" in (deepspeed_config(trainer) or {}):
        raise Refusal(
            "DeepSpeed's configuration must not have a scheduler (it counts steps, whose number is "
            "not known before); remove it and set lr_scheduler_type, or set max_steps"
        )


def check_dataset(dataset: Any) -> None:
    """Raise Refusal on a dataset whose rows have no numbers."""
    if dataset is None:
        raise Refusal("train_dataset must be given to train, got None")
    if isinstance(dataset, IterableDataset) or not has_length(dataset):
        raise Refusal(
            "train_dataset must have __len__ and __getitem__ (what is resumed is positions), got "
            f"{type(dataset).__name__}; load it with streaming=False"
        )
    if len(dataset) == 0:
        raise Refusal("train_dataset must have rows, got none")


def shuffles(trainer: Any) -> bool:
    """Whether the Trainer would draw a new order per epoch. Raise Refusal on any other sampler."""
    strategy = getattr(trainer.args, "train_sampling_strategy", "random")
    if strategy not in ("random", "sequential"):
        raise Refusal(
            f"train_sampling_strategy must be 'random' or 'sequential', got {strategy!r}; the "
            "token budget groups by length already"
        )
    if getattr(trainer.args, "group_by_length", False):
        raise Refusal("group_by_length must be False, got True; the token budget does it already")
    sampler = trainer._get_train_sampler()
    if isinstance(sampler, SequentialSampler):
        return False
    if sampler is None or isinstance(sampler, RandomSampler):
        return True
    raise Refusal(
        "the train sampler must be a RandomSampler or a SequentialSampler, got "
        f"{type(sampler).__name__}; samples are dealt out by their positions"
    )


def check_world_size(trainer: Any, saved: int) -> None:
    """Raise Refusal where the optimizer's state cannot follow to another number of ranks."""
    if deepspeed_config(trainer) is not None and saved != trainer.args.world_size:
        raise Refusal(
            f"DeepSpeed loads its optimizer into as many ranks as saved it, {saved}, got "
            f"{trainer.args.world_size}; resume on {saved} ranks"
        )

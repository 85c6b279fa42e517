"""The settings of online dynamic batching, as a dataclass for ``HfArgumentParser``."""

from dataclasses import dataclass, field
from typing import Any, Literal


def _field(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(kw_only=True)
class OdbArguments:
    """What ``odb_loader`` takes and ``TrainingArguments`` do not have.

    Workers, pinning, seeds, epochs and steps are those of ``TrainingArguments``;
    ``per_device_train_batch_size`` is not used.

    Raises:
        ValueError: A value out of range.
    """

    token_budget: int = _field(
        8192, "Most tokens per rank and batch: samples x longest, or their sum if packed."
    )
    layout: Literal["auto", "padded", "packed"] = _field(
        "auto", "How the collator lays samples: side by side, or end to end; auto: ask it."
    )
    window: int = _field(1024, "Samples buffered per rank to choose from; more pads less.")
    policy: Literal["sliding", "tumbling"] = _field("sliding", "How ranks agree on their steps.")
    join: bool = _field(True, "Every sample of an epoch once; else end with the first empty rank.")
    overlong: Literal["alone", "drop", "raise"] = _field(
        "alone", "A sample over the token budget: a batch of its own, dropped, or an error."
    )
    on_error: Literal["raise", "skip"] = _field("raise", "A row whose dataset raises.")
    sample_quota: int | None = _field(None, "End at the step that reaches so many samples.")
    warmup_samples: int | None = _field(None, "Length of the warm-up, instead of warmup_steps.")
    pad_to_multiple_of: int | None = _field(None, "As the collator pads; default: ask it.")
    loss_shifts_labels: bool | None = _field(
        None, "Whether the model's loss skips the first label of a row; default: ask the model."
    )
    worker_method: Literal["thread", "process"] = _field("thread", "Kind of dataloader workers.")
    prefetch: int = _field(2, "Batches prepared ahead per rank.")
    timeout_s: float = _field(600.0, "Longest wait for the slowest rank, seconds.")

    def __post_init__(self) -> None:
        for name in ("token_budget", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("sample_quota", "pad_to_multiple_of"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or None, got {value}")
        if self.warmup_samples is not None and self.warmup_samples < 0:
            raise ValueError(f"warmup_samples must be at least 0, got {self.warmup_samples}")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")


_CHOICES = {
    "layout": ("auto", "padded", "packed"),
    "policy": ("sliding", "tumbling"),
    "overlong": ("alone", "drop", "raise"),
    "on_error": ("raise", "skip"),
    "worker_method": ("thread", "process"),
}

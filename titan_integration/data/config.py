"""The ``data`` section of a training configuration: which rows, and how they become batches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from titan_integration.data.encoding import TooLong
from titan_integration.data.formats import Format
from titan_integration.errors import UserError

# torchtitan needs a number of steps; this one says that the data, not a number, ends the run.
UNLIMITED_STEPS = 2**31 - 1


@dataclass(kw_only=True, slots=True)
class OdbConfig:
    """Online dynamic batching; each field is the argument of that name of ``odb_loader``."""

    enable: bool = True
    """Batch by token budget; ``--data.odb.no-enable`` takes torchtitan's fixed-size batches."""

    token_budget: int = 8192
    """Most tokens per rank and microbatch: samples times the longest of them, or packed rows."""

    window: int = 1024
    """Samples a rank holds to choose from; larger pads less and keeps more in memory."""

    policy: Literal["sliding", "tumbling"] = "sliding"
    """Alignment policy: "sliding" (sliding window) or "tumbling" (tumbling windows)."""

    join: bool = True
    """Every sample of an epoch exactly once; off: the epoch ends with its first finished rank."""

    layout: Literal["padded", "packed"] | None = None
    """Samples padded to the longest, or packed rows; default packed with flex or varlen attention,
    which know where a sample ends, and padded with SDPA, which does not."""

    rows: int = 1
    """Packed rows of a microbatch; each has ``token_budget / rows`` tokens at most."""

    shape: Literal["dynamic", "fixed"] = "dynamic"
    """Packed rows as long as they must be, or always ``token_budget / rows`` tokens: what pipeline
    parallelism, CUDA graphs and static compilation need."""

    cost: float | None = None
    """What each pair of tokens of a sample costs, over what a token costs: microbatches of packed
    rows then take equally long on all ranks. Default from the model; 0 counts tokens only."""

    pad_to_multiple_of: int = 1
    """Lengths are padded to this; the model's own needs (TP, loss chunks, flex) are added."""

    shape_buckets: int | None = None
    """Most padded lengths between a length and its double, for torch.compile; 4 is a good start."""

    overlong: Literal["alone", "drop", "raise"] = "alone"
    """A sample longer than the token budget: a batch of its own, no batch, or an error."""

    idle: Literal["emit", "skip"] = "emit"
    """What a rank without samples does while others work; torchtitan needs "emit"."""

    on_error: Literal["raise", "skip"] = "raise"
    """A row that cannot be read or encoded: an error, or dropped and counted."""

    num_workers: int = 1
    """Workers a rank that read and tokenize; 0 works in the loader's own thread."""

    worker_method: Literal["thread", "process"] = "thread"
    """Kind of the workers: processes pay off where Python does more than call the tokenizer."""

    prefetch: int = 2
    """Batches a rank prepares ahead."""

    timeout_s: float = 600.0
    """Seconds an exchange between ranks may take before the run fails."""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Files, their reading, and when the run ends: epochs, samples or steps, what comes first."""

    path: list[str] = field(default_factory=list)
    """JSONL or JSON files (a,b,c), read as one dataset; empty: the configured dataloader."""

    validation_path: list[str] = field(default_factory=list)
    """BufferedSample-out rows for ``--validator.enable``: every one of them at every validation."""

    format: Format = "auto"
    """How rows are read; "auto" decides for every row by its keys."""

    max_samples: int | None = None
    """Only the first so many rows."""

    epochs: int | None = None
    """Passes over the rows; by default 1, or as many as ``sample_quota`` takes."""

    sample_quota: int | None = None
    """End after the step at which so many samples were trained on, over all ranks."""

    too_long: TooLong = "error"
    """A sample longer than ``training.seq_len``: an error before training, cut off, or dropped."""

    check: bool = True
    """Read every row once before training (the ranks share the work)."""

    shuffle: bool = True
    """Draw a new order for every epoch."""

    seed: int = 0
    """Of that order."""

    audit_log: str | None = None
    """Prefix of one file a rank that lists each step's samples; for checks, not for speed."""

    odb: OdbConfig = field(default_factory=OdbConfig)

    def validate(self) -> None:
        """Raise UserError on values no run can have, or files that are not there.

        Not in ``__post_init__``: the command line parser would wrap the message in a box.
        """
        for name in ("path", "validation_path"):
            for path in getattr(self, name):
                if not Path(path).is_file():
                    raise UserError(
                        f"data.{name} must name files, got {path!r}, which is not there"
                    )
        if self.odb.enable and not self.path:
            raise UserError(
                "data.path must name at least one file, got none; or --data.odb.no-enable"
            )
        for name in ("max_samples", "epochs", "sample_quota"):
            value = getattr(self, name)
            if value is not None:
                _at_least(1, f"data.{name}", value)
        for name in ("token_budget", "rows", "window", "pad_to_multiple_of", "prefetch"):
            _at_least(1, f"data.odb.{name}", getattr(self.odb, name))
        if self.odb.shape_buckets is not None:
            _at_least(1, "data.odb.shape_buckets", self.odb.shape_buckets)
        _at_least(0, "data.odb.num_workers", self.odb.num_workers)
        if self.odb.cost is not None and not 0 <= self.odb.cost < float("inf"):
            raise UserError(f"data.odb.cost must be at least 0, got {self.odb.cost}")
        if self.odb.layout == "padded" and (self.odb.rows > 1 or self.odb.shape == "fixed"):
            raise UserError(
                "data.odb.rows and data.odb.shape are of packed rows, got data.odb.layout "
                "'padded'; set --data.odb.layout packed, or leave them out"
            )
        if self.odb.timeout_s <= 0:
            raise UserError(f"data.odb.timeout_s must be positive, got {self.odb.timeout_s}")

    @property
    def num_epochs(self) -> int | None:
        """Passes at most; None where only the quota ends the run."""
        if self.epochs is None and self.sample_quota is None:
            return 1
        return self.epochs


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise UserError(f"{name} must be at least {least}, got {value}; set --{name}")

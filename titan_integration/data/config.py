"""The ``data`` section of a training configuration: which rows, and how they become batches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from titan_integration.data.encoding.encoder import Encoding, TooLong, TrainOn
from titan_integration.data.formats import NAMES
from titan_integration.data.formats.document import Preference, Reading
from titan_integration.data.inputs.open import Inputs
from titan_integration.data.inputs.paths import check_path, is_pipe
from titan_integration.data.pictures.vision import Vision
from titan_integration.data.sources.cache import Cache
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
    """Files of any kind, folders, patterns or Hugging Face dataset names (a,b,c), read as one
    dataset; empty: the configured dataloader."""

    mix: list[str] = field(default_factory=list)
    """Instead of ``path``: the same with weights (a:2,b:0.5). 2 is every row twice per epoch, 0.5
    a half of the rows, drawn by ``seed`` and the same in every epoch."""

    split: str | None = None
    """Of datasets that have several, e.g. "test" or "train[:10%]"; by default "train"."""

    streaming: bool = False
    """Read ``path`` once, in its order, and never all of it: pipes ("-" is standard input), JSON
    lines and datasets larger than the disk. Resumes on as many ranks as saved."""

    validation_path: list[str] = field(default_factory=list)
    """Held-out rows for ``--validator.enable``: every one of them at every validation."""

    validation_split: str | None = None
    """As ``split``, of ``validation_path``."""

    validation_fraction: float = 0.0
    """Instead of ``validation_path``: hold out this part of each source's rows, by position."""

    format: str = "auto"
    """How rows are read: messages, sharegpt, alpaca, prompt_response, preference, text or tokens;
    "auto" decides for every row by its keys."""

    columns: list[str] = field(default_factory=list)
    """Columns of other names, as standard=own: prompt=my_question,response=my_answer."""

    roles: list[str] = field(default_factory=list)
    """Roles of other names, as own=standard: customer=user,bot=assistant."""

    preference: Preference = "refuse"
    """Rows with good and bad answers: an error, or "chosen": train on the good ones only."""

    train_on: TrainOn = "all"
    """Answers of a conversation that carry loss: all of them or the last."""

    chat_template: str | None = None
    """A Jinja file, or the name of one of the tokenizer's templates; by default its own."""

    max_samples: int | None = None
    """Only the first so many rows of ``path``."""

    epochs: int | None = None
    """Passes over the rows; by default 1, or as many as ``sample_quota`` takes."""

    sample_quota: int | None = None
    """End after the step at which so many samples were trained on, over all ranks."""

    too_long: TooLong = "error"
    """A sample longer than ``training.seq_len``: an error before training, cut off, dropped, or,
    if it is plain text, cut into several samples ("chunk")."""

    check: bool = True
    """Encode every row once before training (the ranks share the work); kept for a resume."""

    shuffle: bool = True
    """Draw a new order for every epoch."""

    seed: int = 0
    """Of that order."""

    image_dir: str | None = None
    """What paths of pictures in rows are relative to; by default the folder of the row's file."""

    min_pixels: int | None = None
    """Smaller pictures are enlarged to this; by default as the model's own processor does."""

    max_pixels: int | None = None
    """Larger pictures are reduced to this: fewer patches, and fewer tokens in the text."""

    cache_dir: str | None = None
    """Where unpacked and converted files and indexes are kept; by default in the cache folder of
    Hugging Face datasets (``HF_HOME``). May be removed between runs."""

    audit_log: str | None = None
    """Prefix of one file a rank that lists each step's samples; for checks, not for speed."""

    accept_changed: bool = False
    """Resume although data, tokenizer or options that change samples are not what they were."""

    stop_after_s: float | None = None
    """Seconds after which the run saves and ends with exit code 143, as after SIGTERM."""

    stop_within_s: float = 120.0
    """Seconds that a signal leaves for the step to end and to be saved; then the process ends."""

    odb: OdbConfig = field(default_factory=OdbConfig)

    def validate(self) -> None:
        """Raise UserError on values no run can have, or files that are not there.

        Not in ``__post_init__``: the command line parser would wrap the message in a box.
        """
        for path in self.validation_path:
            check_path(path, "data.validation_path")
        if self.odb.enable and not self.has_rows:
            raise UserError(
                "data.path must name at least one file, got none; or --data.odb.no-enable"
            )
        self.encoding(max_len=1)
        if self.has_rows:
            self.inputs().check()
        if self.streaming:
            self._check_streaming()
        if self.validation_path and self.validation_fraction:
            raise UserError(
                "data.validation_path and data.validation_fraction both hold out rows: set one"
            )
        if self.image_dir is not None and not Path(self.image_dir).is_dir():
            raise UserError(f"data.image_dir must be a folder, got {self.image_dir!r}")
        for name in ("max_samples", "epochs", "sample_quota", "min_pixels", "max_pixels"):
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
        for name, seconds in (
            ("odb.timeout_s", self.odb.timeout_s),
            ("stop_within_s", self.stop_within_s),
            ("stop_after_s", self.stop_after_s),
        ):
            if seconds is not None and not seconds > 0:
                raise UserError(f"data.{name} must be positive, got {seconds}; set --data.{name}")

    def encoding(self, max_len: int, vision: Vision | None = None) -> Encoding:
        """What is done to rows for a model that takes ``max_len`` tokens. Raises UserError.

        Args:
            max_len: Tokens of the longest sample.
            vision: How the model takes pictures; None if it takes texts only.
        """
        if self.format not in NAMES:
            raise UserError(f"data.format must be one of {', '.join(NAMES)}, got {self.format!r}")
        reading = Reading(
            form=self.format,
            columns=_pairs("columns", self.columns, "prompt=my_question"),
            roles=_pairs("roles", self.roles, "bot=assistant"),
            preference=self.preference,
            pictures=vision is not None,
        )
        return Encoding(
            reading=reading,
            max_len=max_len,
            too_long=self.too_long,
            train_on=self.train_on,
            chat_template=self.chat_template,
            vision=vision,
        )

    def _check_streaming(self) -> None:
        """Raise UserError on what needs rows by number, or more than one reading of a pipe."""
        for name, remedy in (
            ("mix", "interleave with the datasets library, or do not stream"),
            ("validation_fraction", "name held-out rows by --data.validation_path"),
            ("max_samples", "set --data.sample_quota, or --training.steps"),
        ):
            if getattr(self, name):
                raise UserError(f"a stream cannot have data.{name}: {remedy}")
        if not self.odb.enable:
            raise UserError("data.streaming needs ODB batches, got --data.odb.no-enable")
        pipe = next((path for path in self.path if is_pipe(path)), None)
        if pipe is not None and (self.epochs or 1) > 1:
            raise UserError(
                f"a pipe can be read once, got data.epochs {self.epochs} for {pipe}; "
                "write its rows to a file, or let it send them as often as wanted"
            )

    def inputs(self, *, pictures: bool = False) -> Inputs:
        """What is to be read, as these fields say; ``pictures``: whether rows may name some."""
        return Inputs(
            paths=self.path,
            mix=self.mix,
            split=self.split,
            max_samples=self.max_samples,
            validation_fraction=self.validation_fraction,
            seed=self.seed,
            cache=Cache() if self.cache_dir is None else Cache(folder=Path(self.cache_dir)),
            pictures=pictures,
        )

    @property
    def has_rows(self) -> bool:
        """Whether rows to train on are named; else the configured dataloader has its own."""
        return bool(self.path or self.mix)

    @property
    def has_validation(self) -> bool:
        """Whether rows are held out."""
        return bool(self.validation_path or self.validation_fraction)

    @property
    def num_epochs(self) -> int | None:
        """Passes at most; None where only the quota ends the run."""
        if self.epochs is None and self.sample_quota is None:
            return 1
        return self.epochs


def _pairs(name: str, given: list[str], example: str) -> dict[str, str]:
    """``["a=b"]`` as ``{"a": "b"}``."""
    found: dict[str, str] = {}
    for item in given:
        key, sign, value = (part.strip() for part in item.partition("="))
        if not (key and sign and value) or key in found:
            raise UserError(f"data.{name} must be pairs as in {example}, each once, got {item!r}")
        found[key] = value
    return found


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise UserError(f"{name} must be at least {least}, got {value}; set --{name}")

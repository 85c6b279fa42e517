"""What ``OdbDataLoader`` is told beside the data section."""

from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import tyro

from titan_integration.data.config import DataConfig
from titan_integration.data.pictures.vision import Vision
from titan_integration.upstream import BaseDataLoader

T = TypeVar("T")
Derived = Annotated[T, tyro.conf.Suppress]


@dataclass(kw_only=True, slots=True)
class LoaderConfig(BaseDataLoader.Config):
    """Fields that the trainer fills in from its data section: no flags of the command line."""

    data: Derived[DataConfig] = field(default_factory=DataConfig)
    """Rows and batching."""

    pad_to_multiple_of: Derived[int] = 1
    """What the model's parallelism, loss and attention ask of lengths."""

    vocab_size: Derived[int | None] = None
    """Of the model; the tokenizer may not have more."""

    dataset: Derived[str] = ""
    """Of no effect, as the next one: the data section names the rows."""

    dataset_path: Derived[str | None] = None
    """See above."""

    infinite: Derived[bool] = False
    """Of no effect; torchtitan's validator sets it."""

    cost: Derived[tuple[float, float]] = (1.0, 0.0)
    """What the model makes of a token, and of a pair of tokens of one sample."""

    purpose: Derived[str] = "train"
    """Loaders of different purposes exchange over different groups; "held_out" reads the rows
    that ``data.validation_fraction`` keeps from training."""

    vision: Derived[Vision | None] = None
    """How the model takes pictures; None if it takes texts only."""

    flat_tower: Derived[bool] = False
    """Whether its tower takes pictures end to end; else they are padded to the largest."""

    check_folder: Derived[str | None] = None
    """Keeps what the check of the rows found, for a resumed run."""

"""What is loaded: datasets of known or unknown lengths, transforms, and an audit of batches."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from odb_nodes.types import IGNORE_INDEX
from tools.data.workloads import WORKLOADS as SHAPES

Int64s = npt.NDArray[np.int64]
Sample = dict[str, torch.Tensor]


class TokenDataset:
    """Sample i is ``lengths[i]`` tokens, all of value i + 1: a batch tells which samples it has."""

    def __init__(self, lengths: Int64s) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        ids = torch.full((int(self.lengths[index]),), index + 1)
        return {"input_ids": ids, "labels": ids.clone()}


@dataclass
class SlowDataset:
    """A dataset whose every sample takes ``seconds_per_token`` of sleep for each of its tokens."""

    lengths: Int64s
    seconds_per_token: float

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        time.sleep(self.seconds_per_token * int(self.lengths[index]))
        return TokenDataset(self.lengths)[index]


@dataclass
class TextDataset:
    """Texts, tokenized when a sample is asked for: nobody knows a length before.

    Attributes:
        texts: One a sample.
        tokenizer: Path of a ``tokenizer.json``.
        longest: Tokens kept of a sample.
    """

    texts: list[str]
    tokenizer: str
    longest: int = 4096
    _loaded: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Sample:
        ids = _tokenizer(self.tokenizer).encode_batch([self.texts[index]])[0].ids[
            : self.longest
        ] or [0]
        tokens = torch.tensor(ids) + 1
        return {"input_ids": tokens, "labels": torch.full_like(tokens, index + 1)}


@cache
def _tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)


def workload(name: str, count: int, *, seed: int = 0, scale: float = 1.0) -> Int64s:
    """Lengths of a workload, ``[count]``; ``scale`` shortens all of them."""
    lengths = SHAPES[name].draw(count, seed)
    return np.maximum(1, np.round(lengths * scale)).astype(np.int64)


def read_texts(path: Path, count: int) -> list[str]:
    """The first ``count`` rows of a JSONL file as texts, whatever their keys."""
    texts: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if len(texts) == count:
                break
            texts.append("\n".join(_strings(json.loads(line))))
    return texts


def text_lengths(dataset: TextDataset) -> Int64s:
    """Every sample's length: the pass over all data that offline batching needs first."""
    return np.array([len(dataset[i]["input_ids"]) for i in range(len(dataset))], np.int64)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return []


@dataclass(kw_only=True)
class Audit:
    """Counts batches by their tensors alone, so that no loader is taken at its word.

    Attributes:
        batches: Batches.
        tokens: Real tokens.
        padded: All tokens.
        largest: Tokens of the largest batch.
        seen: How often each sample came, by token value; needs ``TokenDataset``.
    """

    batches: int = 0
    tokens: int = 0
    padded: int = 0
    largest: int = 0
    seen: dict[int, int] = field(default_factory=dict)

    def add(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Count one batch; a batch without any loss (IDLE) has no real token."""
        ids = batch["input_ids"]
        self.batches += 1
        self.padded += ids.numel()
        self.largest = max(self.largest, ids.numel())
        if num_samples(batch) == 0:
            return
        self.tokens += int((ids > 0).sum())
        for value in first_tokens(batch):
            self.seen[value] = self.seen.get(value, 0) + 1


def first_tokens(batch: Mapping[str, torch.Tensor]) -> list[int]:
    """The first token of every sample: of each row, or where positions of a packed row restart."""
    ids = batch["input_ids"]
    if "positions" not in batch:
        return [int(value) for value in ids[:, 0]]
    starts = (batch["positions"] == 0) & (ids > 0)
    return [int(value) for value in ids[starts]]


def num_samples(batch: Mapping[str, torch.Tensor]) -> int:
    """Samples in a batch, at little cost; none if no token carries loss (an IDLE batch)."""
    if not bool((batch["labels"] != IGNORE_INDEX).any()):
        return 0
    if "positions" not in batch:
        return len(batch["input_ids"])
    return int(((batch["positions"] == 0) & (batch["input_ids"] > 0)).sum())

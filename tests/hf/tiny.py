"""Small random models, rows and collators for the tests of the Trainer."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from tests.helpers import random_lengths

VOCAB, PAD = 97, 0


class Rows:
    """Rows of random tokens with a masked prompt; every tenth row is masked as a whole."""

    def __init__(self, count: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.rows = []
        for index, length in enumerate(random_lengths(count, seed=seed)):
            ids = random.integers(1, VOCAB, max(4, length))
            masked = len(ids) if index % 10 == 9 else int(random.integers(0, len(ids) - 1))
            labels = np.where(np.arange(len(ids)) < masked, -100, ids)
            self.rows.append({"input_ids": ids.tolist(), "labels": labels.tolist()})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def pad(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
    """A collator that pads on the right."""
    longest = max(len(row["input_ids"]) for row in rows)

    def column(key: str, value: int) -> torch.Tensor:
        return torch.tensor([list(r[key]) + [value] * (longest - len(r[key])) for r in rows])

    ids = column("input_ids", PAD)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": column("labels", -100),
    }


def label_all(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
    """A collator for pretraining: it makes the labels, whatever the rows say."""
    batch = pad(rows)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch


def flatten(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
    """A padding-free collator: one row, positions that restart, no loss across a border."""
    ids = torch.tensor([token for row in rows for token in row["input_ids"]])[None]
    labels = torch.tensor([t for row in rows for t in [-100, *row["labels"][1:]]])[None]
    positions = torch.cat([torch.arange(len(row["input_ids"])) for row in rows])[None]
    return {"input_ids": ids, "labels": labels, "position_ids": positions}


def llama(**changes: Any) -> LlamaForCausalLM:
    """Two layers of width 64, the same weights every time."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, **{**sizes, **heads, **changes}))


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    """One epoch on the CPU, quiet, without checkpoints."""
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
    options = {"num_train_epochs": 1, "learning_rate": 1e-3, "use_cpu": True, **quiet, **changes}
    return TrainingArguments(output_dir=str(folder), **options)


def fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 of all weights."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()

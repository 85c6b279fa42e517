"""A small tokenizer and rows of real text, made once a session from the standard library."""

import argparse
import asyncio
import inspect
import json
import logging
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


def docstrings() -> list[tuple[str, str]]:
    """Names and docstrings of a few modules: a few hundred, with a heavy tail."""
    found: dict[str, str] = {}
    for module in (argparse, asyncio, inspect, json, logging, subprocess):
        _collect(module.__name__, module, found)
    return sorted(found.items())


def _collect(name: str, owner: ModuleType | type, found: dict[str, str]) -> None:
    for key, value in vars(owner).items():
        if key.startswith("__") or not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        full = f"{name}.{key}"
        if full in found or not value.__doc__:
            continue
        found[full] = inspect.cleandoc(value.__doc__)
        if inspect.isclass(value) and value.__module__.startswith(name):
            _collect(full, value, found)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``rows.jsonl``: 240 conversations of one question and one answer."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    with path.open("w") as file:
        for name, text in docstrings()[:240]:
            question = {"role": "user", "content": f"What is {name}?"}
            answer = {"role": "assistant", "content": text}
            file.write(json.dumps({"messages": [question, answer]}) + "\n")
    return path


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a byte-level BPE tokenizer that has a chat template."""
    from tests.titan.tiny import VOCAB  # here: the contract is tested where torchtitan differs

    folder = tmp_path_factory.mktemp("tokenizer")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((text for _, text in docstrings()), trainer)
    bpe.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "pad_token": "<|pad|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def data_args(rows: Path, tokenizer: Path) -> list[str]:
    """Arguments that every run needs."""
    return ["--data.path", str(rows), "--hf_assets_path", str(tokenizer)]

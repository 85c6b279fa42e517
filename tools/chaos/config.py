"""A model of seconds, and some hundred rows for it."""

import argparse
import asyncio
import inspect
import json
import logging
import subprocess
from pathlib import Path

from configs.debug import KEEP_ALL, debug_config
from configs.llama3 import small
from configs.models import with_sdpa
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.training.metrics import OdbMetricsProcessor
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import CheckpointManager
from tools.data.chat_tokenizer import VOCAB_SIZE, tokenizer_files, train_tokenizer

NUM_ROWS = 300


def tiny() -> OdbTrainer.Config:
    """Every step is logged; a checkpoint every 3 steps, all kept."""
    return debug_config(
        with_sdpa(small(num_layers=1, dim=32, num_heads=2, vocab_size=VOCAB_SIZE)),
        data=DataConfig(odb=OdbConfig(token_budget=1024, window=64)),
        metrics=OdbMetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=True, interval=3, keep_latest_k=0, **KEEP_ALL),
    )


def make_data(folder: Path) -> list[str]:
    """Write rows and a tokenizer there; returns the flags that name them."""
    members = [
        (f"{module.__name__}.{name}", inspect.getdoc(value))
        for module in (argparse, asyncio, inspect, json, logging, subprocess)
        for name, value in sorted(vars(module).items())
        if inspect.isfunction(value) or inspect.isclass(value)
    ]
    texts = [(name, text) for name, text in members if text]
    rows = [texts[i % len(texts)] for i in range(NUM_ROWS)]
    with (folder / "rows.jsonl").open("w") as file:
        for number, (name, text) in enumerate(rows):
            row = {"prompt": f"{number}. What is {name}?", "response": text[:1500]}
            file.write(json.dumps(row) + "\n")
    (folder / "tokenizer").mkdir()
    for name, text in tokenizer_files(train_tokenizer(text for _, text in texts)).items():
        (folder / "tokenizer" / name).write_text(text)
    path = str(folder / "rows.jsonl")
    return ["--data.path", path, "--hf_assets_path", str(folder / "tokenizer")]

"""LLaMA-Factory with dynamic batches, end to end: killed and resumed, DDP and ZeRO-2, sft and pt.

    make llamafactory

Makes a tiny random model, a tokenizer and instructions from the standard library's docstrings;
every run is the public command on two CPU ranks. Prints one line per run and fails on the first
that is not what it must be.
"""

import argparse
import asyncio
import hashlib
import inspect
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
VOCAB, ROWS, EPOCHS = 1024, 200, 2
ZERO2 = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2},
}


def instructions() -> list[dict[str, str]]:
    """Questions and answers: what a function of the standard library is."""
    found = []
    for module in (argparse, asyncio, inspect, json, logging, subprocess):
        for name, value in sorted(vars(module).items()):
            if getattr(value, "__doc__", None) and not name.startswith("_"):
                answer = inspect.cleandoc(value.__doc__)[:1200]
                question = f"What is {module.__name__}.{name}?"
                found.append({"instruction": question, "input": "", "output": answer})
    return found[:ROWS]


def prepare(folder: Path) -> None:
    """Write model, tokenizer, data and DeepSpeed's configuration."""
    rows = instructions()
    (folder / "data").mkdir()
    (folder / "data" / "rows.json").write_text(json.dumps(rows))
    texts = [{"text": row["output"]} for row in rows]
    (folder / "data" / "texts.json").write_text(json.dumps(texts))
    info = {
        "rows": {"file_name": "rows.json"},
        "texts": {"file_name": "texts.json", "columns": {"prompt": "text"}},
    }
    (folder / "data" / "dataset_info.json").write_text(json.dumps(info))
    (folder / "zero2.json").write_text(json.dumps(ZERO2))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator((row["output"] for row in rows), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0.1}
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=2048, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def settings(folder: Path, out: Path, stage: str, zero2: bool) -> dict[str, Any]:
    """A configuration as LLaMA-Factory's users write it."""
    found = {
        "model_name_or_path": str(folder / "model"),
        "stage": stage,
        "do_train": True,
        "finetuning_type": "full",
        "dataset_dir": str(folder / "data"),
        "dataset": "rows" if stage == "sft" else "texts",
        "cutoff_len": 1024,
        "output_dir": str(out),
        "logging_steps": 1,
        "save_steps": 4,
        "report_to": "none",
        "gradient_accumulation_steps": 2,
        "learning_rate": 1.0e-3,
        "num_train_epochs": EPOCHS,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,
        "use_cpu": True,
        "bf16": False,
        "overwrite_output_dir": False,
        "odb_window": 64,
    }
    if stage == "sft":
        found["template"] = "default"
    if zero2:
        found["deepspeed"] = str(folder / "zero2.json")
    return found


def train(folder: Path, out: Path, stage: str, zero2: bool, dies: int = 0) -> int:
    """Run the public command on two ranks; returns its exit code."""
    out.mkdir(parents=True, exist_ok=True)
    config = out.parent / f"{out.name}.yaml"
    config.write_text(yaml.safe_dump(settings(folder, out, stage, zero2)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "tests.llamafactory.rank", "train", str(config), "odb_token_budget=2048"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "DIES": str(dies), "PYTHONPATH": str(ROOT)}
    with (out.parent / f"{out.name}.log").open("a") as log:
        return subprocess.run(command, cwd=ROOT, env=environ, stdout=log, stderr=log).returncode


def weights(out: Path) -> str:
    """SHA-256 of the final weights."""
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def check(folder: Path, stage: str, zero2: bool) -> None:
    """An uninterrupted run, and one that is killed and started again, must end alike."""
    name = f"{stage}, {'ZeRO-2' if zero2 else 'DDP'}"
    started, runs = time.monotonic(), folder / f"{stage}{'-zero2' if zero2 else ''}"
    whole, killed = runs / "whole", runs / "killed"
    if train(folder, whole, stage, zero2):
        sys.exit(f"{name}: failed, see {whole}.log:\n{Path(f'{whole}.log').read_text()[-3000:]}")
    summary = json.loads((whole / "odb_summary.json").read_text())
    assert summary["coverage"] == "exact", summary
    assert train(folder, killed, stage, zero2, dies=6) != 0, "it was to be killed"
    assert train(folder, killed, stage, zero2) == 0, Path(f"{killed}.log").read_text()[-3000:]
    resumed = json.loads((killed / "odb_summary.json").read_text())
    assert resumed["resumed_from"] == 4, resumed
    assert resumed["coverage"] == "exact", resumed
    assert weights(whole) == weights(killed), f"{name}: the resumed run's weights differ"
    print(
        f"{name}: {summary['samples_emitted']} samples in {summary['steps']} steps, padding "
        f"{summary['padding_ratio']:.1%}; killed at step 6, resumed at 4, weights "
        f"{weights(killed)[:12]} equal; {time.monotonic() - started:.0f} s",
        flush=True,
    )


def main() -> None:
    """Check what the command line asks for; everything by default."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["sft", "pt", "sft-zero2"], default=None)
    parser.add_argument("--folder", type=Path, default=None, help="keep the runs here")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    for stage, zero2 in (("sft", False), ("sft", True), ("pt", False)):
        if args.only in (None, f"{stage}{'-zero2' if zero2 else ''}"):
            check(folder, stage, zero2)


if __name__ == "__main__":
    main()

"""Hugging Face trainers side by side: ``python -m tools.bench.trainers``.

Every method trains the same small model once on the same samples, of the lengths of four workloads
(divided by ``--scale`` for a CPU) and of real text: Python's own library, byte by byte. Batches
never hold more than ``--budget`` tokens, padding included, and the steps of all methods have the
same tokens on average: a fixed batch is as large as the longest sample allows, and accumulates
gradients. Times are those of this process's CPU clock, so that other work on the machine does not
matter; on a GPU (``--device cuda``) they are wall times.
"""

import argparse
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from hf_integration import OdbArguments, OdbTrainer
from tools.data.workloads import WORKLOADS

VOCAB = 256  # bytes
HELD_OUT = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What every method trains on.

    Attributes:
        train: Rows of "input_ids" and "labels".
        held_out: Rows for the loss afterwards.
        budget: Most tokens of a batch, padding included.
        seed: Of weights and orders.
        device: "cpu" or "cuda".
        folder: For what trainers write.
    """

    train: Dataset
    held_out: Dataset
    budget: int
    seed: int
    device: str
    folder: str

    @property
    def fixed(self) -> int:
        """Samples of a batch that fits whatever is in it."""
        return max(1, self.budget // max(map(len, self.train["input_ids"])))

    def accumulation(self, samples: int) -> int:
        """Batches of so many samples that have the tokens of one full batch, on average."""
        mean = statistics.mean(map(len, self.train["input_ids"]))
        return max(1, round(self.budget / (samples * mean)))

    def arguments(self, kind: type[Any] = TrainingArguments, **changes: Any) -> Any:
        """Training arguments that all methods share."""
        return kind(
            output_dir=self.folder,
            **{
                "num_train_epochs": 1,
                "learning_rate": 2e-3,
                "lr_scheduler_type": "linear",
                "warmup_steps": 0.1,
                "use_cpu": self.device == "cpu",
                "bf16": False,
                "report_to": [],
                "save_strategy": "no",
                "logging_strategy": "no",
                "disable_tqdm": True,
                "seed": self.seed,
                **changes,
            },
        )

    def model(self) -> LlamaForCausalLM:
        """A small model, the same weights for every method."""
        torch.manual_seed(self.seed)
        sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = LlamaConfig(
            vocab_size=VOCAB, max_position_embeddings=1 << 15, use_cache=False, **sizes, **heads
        )
        return LlamaForCausalLM(config)


def stock(job: Job, **changes: Any) -> Any:
    """The Trainer as it is, with a batch that is padded to its longest sample."""
    arguments = job.arguments(
        per_device_train_batch_size=job.fixed,
        gradient_accumulation_steps=job.accumulation(job.fixed),
        **changes,
    )
    return Trainer(job.model(), arguments, train_dataset=job.train, data_collator=_padding())


def trl(job: Job, *, samples: int, **changes: Any) -> Any:
    """TRL's trainer on tokenized rows."""
    packs = changes.get("packing", False)
    arguments = job.arguments(
        SFTConfig,
        per_device_train_batch_size=samples,
        gradient_accumulation_steps=1 if packs else job.accumulation(samples),
        max_length=job.budget if packs else None,
        gradient_checkpointing=False,
        **changes,
    )
    return SFTTrainer(
        job.model(), arguments, train_dataset=job.train, processing_class=_tokenizer()
    )


def ours(job: Job, collator: Any) -> Any:
    """The same Trainer with batches by token budget."""
    return OdbTrainer(
        job.model(),
        job.arguments(dataloader_num_workers=0),
        train_dataset=job.train,
        data_collator=collator,
        odb=OdbArguments(token_budget=job.budget, window=256),
    )


METHODS: dict[str, Callable[[Job], Any]] = {
    "fixed": stock,
    "by length": lambda job: stock(job, train_sampling_strategy="group_by_length"),
    "TRL packing": lambda job: trl(job, samples=1, packing=True),
    "TRL padding-free": lambda job: trl(job, samples=job.fixed, padding_free=True),
    "ours, padded": lambda job: ours(job, _padding()),
    "ours, packed": lambda job: ours(job, DataCollatorWithFlattening()),
}


def run(method: str, job: Job) -> dict[str, float]:
    """Train once; samples per second, optimizer steps, and the loss per token held out."""
    trainer = METHODS[method](job)
    clock = time.process_time if job.device == "cpu" else time.perf_counter
    started = clock()
    trainer.train()
    if job.device == "cuda":
        torch.cuda.synchronize()
    return {
        "samples_per_s": len(job.train) / (clock() - started),
        "steps": trainer.state.global_step,
        "held_out": held_out_loss(trainer.model, job.held_out),
    }


@torch.no_grad()
def held_out_loss(model: Any, rows: Dataset) -> float:
    """Mean loss over all tokens of the rows, each on its own."""
    model.eval()
    total = count = 0.0
    for row in rows:
        ids = torch.tensor([row["input_ids"]], device=model.device)
        tokens = ids.numel() - 1
        total += float(model(input_ids=ids, labels=ids).loss) * tokens
        count += tokens
    return total / count


def rows_of(lengths: Sequence[int], text: bytes) -> Dataset:
    """Rows of these lengths, one piece of text after the other."""
    rows, at = [], 0
    for length in lengths:
        at = at if at + length <= len(text) else 0
        rows.append(list(text[at : at + length]))
        at += length
    return Dataset.from_dict({"input_ids": rows, "labels": rows})


def library(least: int) -> bytes:
    """At least so many bytes of the source of Python's own library, in a stable order."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= least:
            break
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.trainers", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--budget", type=int, default=4096, help="tokens of a batch")
    parser.add_argument("--scale", type=int, default=4, help="lengths are divided by this")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print("| workload | method | samples/s | over fixed | steps | held-out loss |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for workload in args.workloads:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in args.methods}
        for seed in args.seeds:  # methods in turn, so that none has a quieter machine
            for name in args.methods:
                with tempfile.TemporaryDirectory() as folder:
                    found[name].append(run(name, _job(args, workload, seed, folder)))
        for name in args.methods:
            print(_line(workload, name, found), flush=True)
    return 0


def _job(args: argparse.Namespace, workload: str, seed: int, folder: str) -> Job:
    drawn = WORKLOADS[workload].draw(args.samples + HELD_OUT, seed) // args.scale
    lengths = [min(max(8, int(length)), args.budget) for length in drawn]
    text = library(sum(lengths))
    rows = rows_of(lengths, text)
    return Job(
        train=rows.select(range(args.samples)),
        held_out=rows.select(range(args.samples, len(rows))),
        budget=args.budget,
        seed=seed,
        device=args.device,
        folder=folder,
    )


def _line(workload: str, name: str, found: dict[str, list[dict[str, float]]]) -> str:
    def median(of: str, method: str = name) -> float:
        return statistics.median(result[of] for result in found[method])

    speeds = [result["samples_per_s"] for result in found[name]]
    base = median("samples_per_s", next(iter(found)))
    return (
        f"| {workload} | {name} | {median('samples_per_s'):.1f} "
        f"({min(speeds):.1f} to {max(speeds):.1f}) | {median('samples_per_s') / base:.2f} "
        f"| {median('steps'):.0f} | {median('held_out'):.3f} |"
    )


def _padding() -> DataCollatorForSeq2Seq:
    return DataCollatorForSeq2Seq(_tokenizer(), padding=True)


def _tokenizer() -> PreTrainedTokenizerFast:
    names = {chr(i) if 32 < i < 127 else f"<{i}>": i for i in range(VOCAB)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(names, unk_token="<0>")),
        pad_token="<0>",
        eos_token="<1>",
    )


if __name__ == "__main__":
    raise SystemExit(main())

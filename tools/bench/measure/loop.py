"""Training a plain decoder on every column: ranks on CPUs, or one GPU with ``--device cuda``."""

import importlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tools.bench.columns.columns import COLUMNS, Batch, Job, available
from tools.bench.columns.data import TokenDataset, num_samples, workload
from tools.bench.columns.model import SHAPES, Decoder
from tools.bench.measure.results import Row, spread
from tools.bench.measure.settings import TRAIN_SCALE, Settings
from tools.bench.measure.worlds import run_world

BASE = "standard-8"
_WINDOW = 256
_RANKS = 2  # on CPUs


def training(settings: Settings) -> list[Row]:
    """Emitted samples a second, whole epochs, columns taking turns within each repeat."""
    if settings.device == "cuda":
        return to_rows("training-cuda", [_train_rank(0, 1, settings)])
    importlib.import_module("torch._dynamo")  # an optimizer does: once here, not in every rank
    return to_rows("training-cpu", run_world(_train_rank, _RANKS, settings))


def _train_rank(rank: int, size: int, settings: Settings) -> dict[str, Any]:
    """Samples, steps and seconds by workload, column and repeat."""
    trainer = _Trainer(settings, size)
    group = dist.new_group(backend="gloo") if size > 1 else None
    cuda = settings.device == "cuda"
    scale = 1 if cuda else TRAIN_SCALE
    found: dict[str, Any] = {}
    for name in settings.trained_on:
        lengths = workload(name, settings.train_count, scale=1 / scale)
        job = Job(
            dataset=TokenDataset(lengths),
            lengths=lengths,
            budget=settings.budget // scale,
            window=min(_WINDOW, settings.train_count // 4),
            num_workers=4 if cuda else 1,
            rank=rank,
            world_size=size,
            group=group,
            pin_memory=cuda,
        )
        columns = available(settings.trained)
        trainer.epoch(COLUMNS["ours"](job), most=3)  # warm up
        found[name] = {column: [] for column in columns}
        for repeat in range(settings.train_repeats):
            for column in columns:
                told = trainer.epoch(COLUMNS[column](replace(job, seed=repeat, notes={})))
                found[name][column].append(told)
        if rank == 0:
            print(f"  training: {name} done", flush=True)
    return found


class _Trainer:
    """A model, its optimizer and the training step."""

    def __init__(self, settings: Settings, size: int) -> None:
        self.device = torch.device(settings.device)
        self._dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        torch.manual_seed(0)
        model = Decoder(SHAPES[settings.model]).to(self.device, self._dtype)
        self._size = size
        self.model = DistributedDataParallel(model) if size > 1 else model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def epoch(self, batches: Iterator[Batch], most: int | None = None) -> dict[str, float]:
        """Train until one rank has no further batch, or for ``most`` steps."""
        started = time.perf_counter()
        samples = steps = padded = 0
        try:
            while steps != most and self._all(batch := next(batches, None)):
                assert batch is not None
                self._step(batch)
                samples += num_samples(batch)
                padded += batch["input_ids"].numel()
                steps += 1
            failed = 0.0
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            failed = 1.0
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        getattr(batches, "close", lambda: None)()
        told = {"samples": samples, "steps": steps, "padded": padded, "seconds": seconds}
        return {**told, "failed": failed}

    def _step(self, batch: Batch) -> None:
        ids, labels = (
            batch[key].to(self.device, non_blocking=True) for key in ("input_ids", "labels")
        )
        loss = self.model(ids, labels) / labels.numel()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _all(self, batch: Batch | None) -> bool:
        if self._size == 1:
            return batch is not None
        have = torch.tensor(int(batch is not None))
        dist.all_reduce(have, dist.ReduceOp.MIN)
        return bool(have)


def to_rows(measure: str, told: list[dict[str, Any]]) -> list[Row]:
    """Rates and ratios of training runs; ``told`` is what every rank measured."""
    rows = []
    for name, columns in told[0].items():
        rates = {}
        for column in columns:
            runs = list(zip(*(rank[name][column] for rank in told), strict=True))
            rates[column] = [
                sum(rank["samples"] for rank in run) / max(rank["seconds"] for rank in run)
                for run in runs
            ]
        for column, values in rates.items():
            one = told[0][name][column][0]
            measured: dict[str, Any] = {
                "samples_per_s": spread(values),
                "steps": one["steps"],
                "out_of_memory": one["failed"],
            }
            for base, label in ((BASE, "of_standard"), ("gmt", "of_gmt"), ("reference", "of_ref")):
                if base in rates:
                    pairs = zip(values, rates[base], strict=True)
                    measured[label] = spread([a / b for a, b in pairs])
            rows.append(
                Row(
                    measure=measure,
                    workload=name,
                    column=column,
                    values=measured,
                    world=len(told),
                )
            )
    return rows

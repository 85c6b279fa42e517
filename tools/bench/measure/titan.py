"""torchtitan's own training step on every column, on CPU ranks: what a user's run would do.

Runs under torchrun. One trainer trains on one column after the other, so that all of them share a
process, a model and a moment: ``python -m torch.distributed.run ... -m tools.bench.measure.titan``.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tools.bench.columns.columns import COLUMNS, Job
from tools.bench.columns.data import TokenDataset, num_samples, workload
from tools.bench.measure.settings import TRAIN_SCALE, Settings

_COLUMNS = ("standard-8", "packing", "gmt", "ours")


def main() -> None:
    """``SETTINGS OUT``: train, and write counts and seconds of this rank to a file in OUT."""
    settings, folder = Settings.loads(sys.argv[1]), Path(sys.argv[2])
    from titan_integration import cpu

    if cpu.is_cpu_only():
        cpu.patch()  # before torchtitan is imported
    from tools.bench.measure.titan_trainer import build

    with tempfile.TemporaryDirectory() as dump:
        trainer = build(settings, dump)
        trainer.step = 2  # neither the first nor a logged one
        rank = dist.get_rank()
        found = _all_columns(trainer, settings, rank)
        (folder / f"{rank}.json").write_text(json.dumps(found))
        trainer.close()


def _all_columns(trainer: Any, settings: Settings, rank: int) -> dict[str, Any]:
    size = dist.get_world_size()
    group = dist.new_group(backend="gloo")
    found: dict[str, Any] = {}
    for name in settings.trained_on:
        lengths = workload(name, settings.train_count, scale=1 / TRAIN_SCALE)
        found[name] = {column: [] for column in _COLUMNS}
        for repeat in range(settings.train_repeats):
            for column in _COLUMNS:
                job = Job(
                    dataset=TokenDataset(lengths),
                    lengths=lengths,
                    budget=settings.budget // TRAIN_SCALE,
                    window=min(256, settings.train_count // 4),
                    num_workers=1,
                    rank=rank,
                    world_size=size,
                    group=group,
                    seed=repeat,
                )
                found[name][column].append(_train(trainer, COLUMNS[column](job)))
        if rank == 0:
            print(f"  torchtitan: {name} done", flush=True)
    return found


def _train(trainer: Any, batches: Iterator[Any]) -> dict[str, float]:
    """An epoch, or as much of it as all ranks have batches for."""
    started = time.perf_counter()
    samples = steps = 0
    while _all(batch := next(batches, None)):
        assert batch is not None
        ids, labels = batch["input_ids"], batch["labels"]
        positions = batch.get("positions", torch.arange(ids.shape[1]).expand_as(ids))
        trainer.train_step(iter([({"input": ids, "positions": positions}, labels)]))
        samples += num_samples(batch)
        steps += 1
    seconds = time.perf_counter() - started
    getattr(batches, "close", lambda: None)()
    return {"samples": samples, "steps": steps, "seconds": seconds, "failed": 0.0}


def _all(batch: Any) -> bool:
    have = torch.tensor(int(batch is not None))
    dist.all_reduce(have, dist.ReduceOp.MIN)
    return bool(have)


if __name__ == "__main__":
    main()

"""Several ranks: steps, the slowest rank, and what the exchange costs."""

import time
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from tools.bench.columns.columns import COLUMNS, Job, available
from tools.bench.columns.data import Audit, Int64s, TokenDataset, num_samples, workload
from tools.bench.columns.offline import minimum_batches
from tools.bench.measure.results import Row, spread
from tools.bench.measure.settings import Settings
from tools.bench.measure.worlds import Meter, run_world

_COLUMNS = ("standard-8", "packing", "gmt", "bmt", "reference", "ours", "ours-tumbling")
_STEP_S = 0.05  # a training step, for the wait
_WAITED = 256  # window


def ranks(settings: Settings) -> list[Row]:
    """Counts on every world and window, and the wait on two balanced ranks."""
    rows = []
    columns = available(_COLUMNS)
    for size in settings.worlds:
        for name in [w for w in ("sharegpt4o", "mmmix") if w in settings.workloads]:
            lengths = workload(name, settings.count)
            asked = [(column, w) for column in columns for w in _windows(column, settings)]
            told = run_world(_count_rank, size, lengths, settings.budget, asked)
            minimum = len(minimum_batches(lengths, settings.budget)) / size
            for at, (column, window) in enumerate(asked):
                values = _merge([rank[at] for rank in told], minimum, len(lengths))
                rows.append(_row("ranks", name, column, values, window, size))
            print(f"  ranks: {size} on {name} done", flush=True)
    return rows + wait(settings)


def wait(settings: Settings) -> list[Row]:
    """What the exchange costs two balanced ranks that take steps of 50 ms (sleeps) in lockstep.

    The exchange waits in the thread that prefetches; a training step is held up only by the stall.
    """
    lengths = workload("llava", settings.count)
    rows = []
    for column in ("standard-8", "ours", "ours-tumbling"):  # the first has no exchange
        repeats = min(3, settings.repeats)
        told = run_world(_wait_rank, 2, lengths, settings.budget, column, repeats)
        values = {
            name: spread([max(rank[repeat][at] for rank in told) for repeat in range(repeats)])
            for at, name in enumerate(("wait_of_step_time", "stall_of_step_time"))
        }
        rows.append(_row("wait", "llava", column, values, _WAITED, size=2))
    return rows


def _windows(column: str, settings: Settings) -> tuple[int, ...]:
    return settings.windows[:2] if column.startswith(("ours", "reference")) else (0,)


def _count_rank(
    rank: int, size: int, lengths: Int64s, budget: int, asked: list[tuple[str, int]]
) -> list[dict[str, Any]]:
    """Each of the asked columns once; on every rank in the same order."""
    group = dist.new_group(backend="gloo")
    found = []
    for column, window in asked:
        job = Job(
            dataset=TokenDataset(lengths),
            lengths=lengths,
            budget=budget,
            window=window or 256,
            num_workers=1,
            rank=rank,
            world_size=size,
            group=group,
        )
        audit, meter, samples, loads = Audit(), Meter(), 0, []
        with meter.reading():
            for batch in COLUMNS[column](job):
                audit.add(batch)
                samples += num_samples(batch)
                loads.append(batch["input_ids"].numel())
        told = asdict(audit) | {"samples": samples, "loads": loads, "notes": job.notes}
        told["seen"] = list(audit.seen)
        found.append(told | {"bytes": meter.bytes, "calls": meter.calls})
        dist.barrier()
    return found


def _merge(told: list[dict[str, Any]], minimum: float, count: int) -> dict[str, Any]:
    steps = [rank["batches"] for rank in told]
    loads = list(zip(*(rank["loads"] for rank in told), strict=False))
    seen = {value for rank in told for value in rank["seen"]}
    slowest = sum(map(max, loads)) / max(1, sum(map(sum, loads)) / len(told))
    return {
        "steps": max(steps),
        "steps_fewest": min(steps),
        "over_minimum": max(steps) / minimum,
        "padding": 1 - sum(r["tokens"] for r in told) / sum(r["padded"] for r in told),
        "slowest_over_mean": slowest,
        "lost": count - len(seen),
        "collectives": max(rank["calls"] for rank in told),
        "bytes": max(rank["bytes"] for rank in told),
        "bytes_per_sample": max(r["bytes"] / max(1, r["samples"]) for r in told),
    }


def _wait_rank(
    rank: int, size: int, lengths: Int64s, budget: int, column: str, repeats: int
) -> list[tuple[float, float]]:
    """Wait of the exchange and stall of the trainer after its first batch, per step time."""
    group = dist.new_group(backend="gloo")
    parts = []
    for seed in range(repeats):
        job = Job(
            dataset=TokenDataset(lengths),
            lengths=lengths,
            budget=budget,
            window=_WAITED,
            num_workers=1,
            rank=rank,
            world_size=size,
            group=group,
            seed=seed,
        )
        steps, stall = 0, 0.0
        batches = COLUMNS[column](job)
        batch = next(batches, None)
        while batch is not None:
            time.sleep(_STEP_S)
            dist.barrier()  # as the gradient exchange of a training step
            steps += 1
            started = time.perf_counter()
            following = next(batches, None)
            stall += time.perf_counter() - started
            batch = following  # only now the last one is freed, at the trainer's own expense
        total = steps * _STEP_S
        parts.append((job.notes.get("wait_s", 0.0) / total, stall / total))
    return parts


def _row(
    measure: str, name: str, column: str, values: dict[str, Any], window: int, size: int
) -> Row:
    return Row(
        measure=measure,
        workload=name,
        column=column,
        values=values,
        window=window or None,
        world=size,
    )

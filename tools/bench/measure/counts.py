"""What does not depend on the clock: batches, padding, budget, coverage; and the ablations."""

from dataclasses import replace
from typing import TypeVar

from tools.bench.columns.columns import COLUMNS, WINDOWED, Job, available
from tools.bench.columns.data import Audit, Int64s, TokenDataset, workload
from tools.bench.columns.offline import minimum_batches
from tools.bench.measure.results import Row
from tools.bench.measure.settings import Settings

Number = TypeVar("Number", int, float)
_BY_WINDOW = ("reference", "ours", "ours-tumbling")
_ABLATED = ("ours", "ours-tumbling", "reference", "gmt")
_WINDOW = 256
_BUDGETS = (4096, 8192, 16384, 32768, 65536)
_WINDOWS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)


def shape(settings: Settings) -> list[Row]:
    """Every column on every workload, the windowed ones at every window."""
    rows = []
    for name in settings.workloads:
        lengths = workload(name, settings.count)
        for column in available(list(COLUMNS)):
            for window in settings.windows if column in _BY_WINDOW else (_WINDOW,):
                job = _job(lengths, settings.budget, window)
                rows.append(count("shape", name, column, job))
        print(f"  shape: {name} done", flush=True)
    return rows


def ablations(settings: Settings) -> list[Row]:
    """Token budget, window, and share of short samples, one at a time."""
    lengths = workload("mmmix", settings.count // 2)
    base = _job(lengths, settings.budget, _WINDOW)
    rows = []
    for column in available(_ABLATED):
        for budget in _few(_BUDGETS, settings):
            rows.append(_ablate("budget", budget, column, replace(base, budget=budget)))
        for window in _few(_WINDOWS, settings):
            if column in WINDOWED:
                rows.append(_ablate("window", window, column, replace(base, window=window)))
        for share in _few(_SHARES, settings):
            job = _job(mixture(share, len(lengths)), base.budget, base.window)
            rows.append(_ablate("short", share, column, job))
        print(f"  ablations: {column} done", flush=True)
    return rows


def mixture(share: float, count: int) -> Int64s:
    """A share of short samples (llava-shaped, a third as long), the rest ultrachat-shaped."""
    short = workload("llava", count, seed=1, scale=1 / 3)
    long = workload("ultrachat", count, seed=2)
    cut = round(share * count)
    long[:cut] = short[:cut]  # the order is shuffled when it is loaded
    return long


def count(measure: str, name: str, column: str, job: Job) -> Row:
    """Load one epoch in one process and count what came."""
    audit = Audit()
    for batch in COLUMNS[column](job):
        audit.add(batch)
    minimum = len(minimum_batches(job.lengths, job.budget))
    values = {
        "batches": audit.batches,
        "over_minimum": audit.batches / minimum,
        "padding": 1 - audit.tokens / audit.padded,
        "largest_over_budget": audit.largest / job.budget,
        "lost": len(job.lengths) - len(audit.seen),
        "repeated": sum(audit.seen.values()) - len(audit.seen),
    }
    window = job.window if column in WINDOWED else None
    return Row(measure=measure, workload=name, column=column, values=values, window=window)


def _ablate(what: str, value: float, column: str, job: Job) -> Row:
    row = count(f"ablation-{what}", "mmmix" if what != "short" else "mixture", column, job)
    return replace(row, values={what: value, **row.values})


def _job(lengths: Int64s, budget: int, window: int) -> Job:
    return Job(dataset=TokenDataset(lengths), lengths=lengths, budget=budget, window=window)


def _few(values: tuple[Number, ...], settings: Settings) -> tuple[Number, ...]:
    """All values in a full run, else the outer ones."""
    return values if settings.size == "full" else (values[0], values[-1])

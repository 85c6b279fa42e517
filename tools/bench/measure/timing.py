"""Rates of the data path and latency of the first batch.

Columns take turns within each repeat, and a ratio compares two runs of the same repeat.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tools.bench.columns.columns import COLUMNS, Job, available
from tools.bench.columns.data import (
    Int64s,
    TextDataset,
    TokenDataset,
    num_samples,
    read_texts,
    text_lengths,
    workload,
)
from tools.bench.measure.results import Row, spread
from tools.bench.measure.settings import Settings

BASE = "standard-8"
WINDOW = 256
_MAIN = (BASE, "gmt", "reference", "ours", "ours-processes")  # on all but the first workload


def speed(settings: Settings) -> list[Row]:
    """Emitted samples a second and latency of the first batch, trivial and tokenizing."""
    rows = []
    for name in settings.timed:
        lengths = workload(name, settings.count)
        rows += _speed("speed", name, TokenDataset(lengths), lengths, settings)
    if settings.texts:
        texts = read_texts(Path(settings.texts), settings.num_texts)
        dataset = TextDataset(texts, settings.tokenizer)
        rows += _speed("speed-tokenize", "texts", dataset, text_lengths(dataset), settings)
    return rows


def run_once(column: str, job: Job) -> tuple[float, float]:
    """One epoch: emitted samples a second, and seconds to the first batch."""
    gc.collect()
    started = time.perf_counter()
    samples, first = 0, 0.0
    for batch in COLUMNS[column](job):
        first = first or time.perf_counter() - started
        samples += num_samples(batch)
    return samples / (time.perf_counter() - started), first


def take_turns(
    columns: Sequence[str], repeats: int, run: Callable[[str, int], tuple[float, float]]
) -> dict[str, list[tuple[float, float]]]:
    """Every column once a repeat, each time beginning with another one."""
    found: dict[str, list[tuple[float, float]]] = {column: [] for column in columns}
    for repeat in range(repeats):
        at = repeat % len(columns)
        for column in [*columns[at:], *columns[:at]]:
            found[column].append(run(column, repeat))
    return found


def _speed(
    measure: str, name: str, dataset: object, lengths: Int64s, settings: Settings
) -> list[Row]:
    job = Job(dataset=dataset, lengths=lengths, budget=settings.budget, window=WINDOW)
    whole = name == settings.timed[0] or (name == "texts" and settings.size == "full")
    columns = available(list(COLUMNS) if whole else _MAIN)
    repeats = settings.repeats if whole else min(2, settings.repeats)
    found = take_turns(
        columns, repeats, lambda column, repeat: run_once(column, replace(job, seed=repeat))
    )
    rows = []
    for column, runs in found.items():
        values = {
            "samples_per_s": spread([rate for rate, _ in runs]),
            "first_batch_s": spread([first for _, first in runs]),
            "of_standard": spread(
                [rate / base for (rate, _), (base, _) in zip(runs, found[BASE], strict=True)]
            ),
            "first_beyond_standard_s": spread(
                [first - base for (_, first), (_, base) in zip(runs, found[BASE], strict=True)]
            ),
        }
        if "reference" in found:
            pairs = zip(runs, found["reference"], strict=True)
            values["of_reference"] = spread([rate / base for (rate, _), (base, _) in pairs])
        rows.append(
            Row(measure=measure, workload=name, column=column, values=values, window=WINDOW)
        )
    print(f"  {measure}: {name} done", flush=True)
    return rows

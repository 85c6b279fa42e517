"""What depends on the clock: rates, first batches, overlap with training, peak memory.

Columns take turns within each repeat, and a ratio compares two runs of the same repeat.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tools.bench.columns import COLUMNS, Job, available, with_dataset
from tools.bench.data import (
    Int64s,
    SlowDataset,
    TextDataset,
    TokenDataset,
    num_samples,
    read_texts,
    text_lengths,
    workload,
)
from tools.bench.results import Row, spread
from tools.bench.settings import Settings

BASE = "standard-8"
WINDOW = 256
_OVERLAPPED = ("standard-8", "sorted", "gmt", "bmt", "reference", "ours", "ours-paper")
_OVERLAP_S = 2.0  # preprocessing and training, each
_WINDOWS_AN_EPOCH = 16  # a window is filled before the first batch: shorter epochs overlap less


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


def overlap(settings: Settings) -> list[Row]:
    """Overlap of preprocessing with training of equal length, at every loader's defaults.

    ``(preprocessing alone + training alone - both) / training alone``. Both are sleeps, since
    real work of that size would need a core for each: the time shown is what the loader hides.
    """
    windows = {"at the window": WINDOW, "default": 1024}
    rows = []
    for label, window in windows.items() if settings.repeats >= 5 else [("default", 64)]:
        lengths = workload("ultrachat", window * _WINDOWS_AN_EPOCH)
        slow = SlowDataset(lengths, 2 * _OVERLAP_S / int(lengths.sum()))  # of two workers
        job = Job(dataset=slow, lengths=lengths, budget=settings.budget, window=window)
        columns = available(_OVERLAPPED)
        runs: dict[str, list[float]] = {column: [] for column in columns}
        for repeat in range(min(3, settings.repeats)):
            for column in columns:
                runs[column].append(_overlap(column, replace(job, seed=repeat)))
        for column, values in runs.items():
            measured = {"overlap": spread(values), "label": label}
            rows.append(
                Row(
                    measure="overlap",
                    workload="ultrachat",
                    column=column,
                    values=measured,
                    window=window,
                )
            )
        print(f"  overlap: window {window} done", flush=True)
    return rows


def memory(settings: Settings) -> list[Row]:
    """Peak memory of all processes of a loader over an epoch, beyond what it started with."""
    lengths = workload("sharegpt4o", settings.count)
    rows = []
    for column in available(list(COLUMNS)):
        job = Job(
            dataset=TokenDataset(lengths), lengths=lengths, budget=settings.budget, window=WINDOW
        )
        with PeakMemory() as peak:
            for _ in COLUMNS[column](job):
                pass
        values = {"peak_mb": peak.megabytes}
        rows.append(Row(measure="memory", workload="sharegpt4o", column=column, values=values))
    return rows


class PeakMemory:
    """Watches the proportional memory of this process and its descendants, 50 times a second.

    Proportional: a page that several processes share is counted once in all. Linux only.
    """

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        self._start = self._peak = _tree_memory(os.getpid())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        """Peak growth."""
        return (self._peak - self._start) / 1000

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self._peak = max(self._peak, _tree_memory(os.getpid()))


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
    columns = available(list(COLUMNS))
    repeats = settings.repeats if name in ("ultrachat", "texts") else min(3, settings.repeats)
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


def _overlap(column: str, job: Job) -> float:
    alone = _timed(column, with_dataset(job, job.dataset), 0.0)
    rate = _OVERLAP_S / int(job.lengths.sum())
    both = _timed(column, with_dataset(job, job.dataset), rate)
    return (alone + _OVERLAP_S - both) / min(alone, _OVERLAP_S)


def _timed(column: str, job: Job, seconds_per_token: float) -> float:
    started = time.perf_counter()
    for batch in COLUMNS[column](job):
        if seconds_per_token:
            time.sleep(seconds_per_token * int((batch["input_ids"] > 0).sum()))
    return time.perf_counter() - started


def _tree_memory(pid: int) -> int:
    """Proportional memory of a process and its descendants, in kB."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += _tree_memory(int(child))
    except OSError:
        pass  # the process has just ended, or this is not Linux
    return total

"""Overlap of preprocessing with training, and peak memory."""

import gc
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.bench.columns.columns import COLUMNS, Job, available, with_dataset
from tools.bench.columns.data import Int64s, SlowDataset, TokenDataset, workload
from tools.bench.measure.results import Row, spread
from tools.bench.measure.settings import Settings
from tools.bench.measure.worlds import in_child

_WINDOWS_AN_EPOCH = 8  # a window is filled before the first batch: shorter epochs overlap less
_WINDOW = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One setting of the overlap: ``seconds`` each of preprocessing and training.

    Attributes:
        label: What is special about it.
        window: Samples buffered.
        seconds: Of preprocessing, and of training.
        columns: Those to measure.
        repeats: Of each.
        scale: Of the lengths.
        reference_prefetch: The reference's; None is what fills the window.
    """

    label: str
    window: int
    seconds: float
    columns: Sequence[str]
    repeats: int = 2
    scale: float = 1.0
    reference_prefetch: int | None = None


_FEW = ("standard-8", "reference", "ours")
_CASES = {
    "full": (
        Case(label="defaults", window=1024, seconds=4.0, columns=_FEW, reference_prefetch=2),
        # Some 150 samples a batch: half a window and more.
        Case(label="short samples", window=256, seconds=2.0, columns=("ours",), scale=0.07),
    ),
    "quick": (Case(label="same window", window=256, seconds=0.5, columns=_FEW, repeats=1),),
    "tiny": (Case(label="defaults", window=16, seconds=0.1, columns=_FEW),),
}


def overlap(settings: Settings) -> list[Row]:
    """Overlap of preprocessing with training of equal length.

    ``(preprocessing alone + training alone - both) / the shorter of them``. Both are sleeps, since
    real work of that size would need a core for each: the time shown is what the loader hides.
    """
    return [row for case in _CASES[settings.size] for row in _case(case, settings)]


def _case(case: Case, settings: Settings) -> list[Row]:
    lengths = workload("ultrachat", case.window * _WINDOWS_AN_EPOCH, scale=case.scale)
    slow = SlowDataset(lengths, 2 * case.seconds / int(lengths.sum()))  # two workers share it
    job = Job(dataset=slow, lengths=lengths, budget=settings.budget, window=case.window)
    columns = available(case.columns)
    runs: dict[str, list[float]] = {column: [] for column in columns}
    for repeat in range(min(case.repeats, settings.repeats)):
        for column in columns:
            prefetch = case.reference_prefetch if column == "reference" else None
            turn = replace(job, seed=repeat, prefetch=prefetch)
            runs[column].append(_overlap(column, turn, case.seconds))
        print(f"  overlap: {case.label}, {repeat + 1} done", flush=True)
    return [
        Row(
            measure="overlap",
            workload="ultrachat",
            column=column,
            values={"overlap": spread(values), "label": case.label},
            window=case.window,
        )
        for column, values in runs.items()
    ]


def _overlap(column: str, job: Job, seconds: float) -> float:
    alone = _timed(column, with_dataset(job, job.dataset), 0.0)
    both = _timed(column, with_dataset(job, job.dataset), seconds / int(job.lengths.sum()))
    return (alone + seconds - both) / min(alone, seconds)


def _timed(column: str, job: Job, seconds_per_token: float) -> float:
    started = time.perf_counter()
    for batch in COLUMNS[column](job):
        if seconds_per_token:
            time.sleep(seconds_per_token * int((batch["input_ids"] > 0).sum()))
    return time.perf_counter() - started


def memory(settings: Settings) -> list[Row]:
    """Peak memory of all processes of a loader over an epoch, beyond what it started with."""
    rows = []
    for column in available(list(COLUMNS) if settings.size == "full" else _FEW):
        peak = in_child(_peak, column, settings.count, settings.budget)
        values = {"peak_mb": peak}
        rows.append(Row(measure="memory", workload="sharegpt4o", column=column, values=values))
    print("  memory: done", flush=True)
    return rows


def _peak(column: str, count: int, budget: int) -> float:
    """In a process of its own: what one column frees, another would use again."""
    first = workload("sharegpt4o", 32)
    for _ in COLUMNS[column](_memory_job(first, budget)):
        pass  # imports are not counted
    with PeakMemory() as peak:
        for _ in COLUMNS[column](_memory_job(workload("sharegpt4o", count), budget)):
            pass
    return peak.megabytes


def _memory_job(lengths: Int64s, budget: int) -> Job:
    return Job(dataset=TokenDataset(lengths), lengths=lengths, budget=budget, window=_WINDOW)


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

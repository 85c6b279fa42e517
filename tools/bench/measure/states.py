"""States and scale: size and cost of a state, time to resume, memory of a view."""

import itertools
import pickle
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import RandomSampler

from odb_nodes import SamplerView, odb_loader
from tools.bench.columns.columns import pad
from tools.bench.columns.data import SlowDataset, TokenDataset, workload
from tools.bench.measure.results import Row, spread
from tools.bench.measure.settings import Settings
from tools.bench.measure.worlds import in_child

_COST_WINDOW = 4096
_DONE = (0.1, 0.5, 0.9)  # of an epoch, at which to resume
_SAMPLE_S = 2e-6  # a token, for the resume: preprocessing again is what it costs


def states(settings: Settings) -> list[Row]:
    """Size in bytes, microseconds to take one, and seconds from loading to the next batch."""
    rows = [_resume(column, settings) for column in ("ours", "stateful-8")]
    for window in sorted({*settings.windows, min(_COST_WINDOW, settings.count)}):
        rows.append(_cost(window, settings))
    print("  states: done", flush=True)
    return rows


def scale(settings: Settings) -> list[Row]:
    """Seconds to open an epoch and its first views, and growth of memory, in a fresh process."""
    rows = []
    for size in (settings.big_view // 100, settings.big_view):
        for column in ("ours", "standard-8"):
            if column == "ours" or size <= 10_000_000:  # its list of a billion would not fit
                values = in_child(_open_epoch, column, size)
                rows.append(Row(measure="scale", workload=str(size), column=column, values=values))
    print("  scale: done", flush=True)
    return rows


def _cost(window: int, settings: Settings) -> Row:
    lengths = workload("ultrachat", window + settings.count)
    loader = odb_loader(TokenDataset(lengths), token_budget=settings.budget, window=window)
    costs, sizes, held = [], [], 0
    with loader:
        for _ in itertools.islice(loader, 40):
            align: Any = loader.align
            with align.exchange.lock:  # the thread that prefetches takes it for every batch
                started = time.perf_counter()
                state = align.state_dict()
            costs.append((time.perf_counter() - started) * 1e6)
            sizes.append(len(pickle.dumps(state)))
            held = max(held, len(state["source"]["held"]) // 8)
    values = {"state_us": spread(costs), "bytes": max(sizes), "held": held}
    return Row(measure="state", workload="ultrachat", column="ours", values=values, window=window)


def _resume(column: str, settings: Settings) -> Row:
    lengths = workload("ultrachat", settings.count)
    dataset = SlowDataset(lengths, _SAMPLE_S / 10)
    build = _OPENERS[column]
    total = sum(1 for _ in build(dataset, settings))
    values: dict[str, Any] = {}
    for done in _DONE:
        loader = build(dataset, settings)
        iterator = iter(loader)
        for _ in range(max(1, int(done * total))):
            next(iterator)
        state = loader.state_dict()
        _close(loader)
        del iterator
        runs = []
        for _ in range(settings.repeats):
            fresh = build(dataset, settings)
            started = time.perf_counter()
            fresh.load_state_dict(state)
            next(iter(fresh))
            runs.append(time.perf_counter() - started)
            _close(fresh)
        values[f"resume_s_at_{done}"] = spread(runs)
        values[f"bytes_at_{done}"] = len(pickle.dumps(state))
    return Row(measure="resume", workload="ultrachat", column=column, values=values)


def _open_ours(dataset: SlowDataset, settings: Settings) -> Any:
    return odb_loader(dataset, token_budget=settings.budget, window=256, num_workers=2)


def _open_stateful(dataset: SlowDataset, settings: Settings) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows: Any = dataset  # the annotation asks for a Dataset; any with length and items will do
    return StatefulDataLoader(rows, batch_size=8, shuffle=True, num_workers=2, collate_fn=pad)


_OPENERS: dict[str, Callable[..., Any]] = {"ours": _open_ours, "stateful-8": _open_stateful}


def _close(loader: Any) -> None:
    if hasattr(loader, "shutdown"):
        loader.shutdown()


def _open_epoch(column: str, num_samples: int) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    if column == "ours":
        view = SamplerView(num_samples)
        view.reset()
        list(itertools.islice(view, 1000))
    else:
        sampler = RandomSampler(range(num_samples), generator=torch.Generator())
        list(itertools.islice(sampler, 1000))
    seconds = time.perf_counter() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"open_s": seconds, "grown_mb": grown / 1000}

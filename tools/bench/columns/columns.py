"""The columns: every way to batch behind one protocol, ``Job -> iterator of batches``.

A column is a generator function. What it opens (workers, threads) it closes when the generator
ends or is closed. Batches are mappings with "input_ids" and "labels", and "positions" if packed.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from odb_nodes.types import IGNORE_INDEX
from tools.bench.columns.data import Int64s, Sample
from tools.bench.columns.offline import (
    bucketed_batches,
    deal,
    length_sorted_batches,
    minimum_batches,
)

Batch = Mapping[str, torch.Tensor]
Column = Callable[["Job"], Iterator[Batch]]
_REFERENCE_SEEDS = itertools.count(10_000, 10_000)  # the same on all ranks


@dataclass(frozen=True, kw_only=True)
class Job:
    """One epoch to load.

    Attributes:
        dataset: Map-style; preprocessing happens in ``__getitem__``.
        lengths: All lengths: only columns that are named offline may look at them.
        budget: Padded tokens a batch and rank.
        window: Samples buffered a rank.
        num_workers: Workers a rank.
        prefetch: Overrides a column's own default of what it prepares ahead.
        rank: Data-parallel rank.
        world_size: Data-parallel ranks.
        group: A gloo group for the exchange, if there are several ranks.
        seed: Chooses the order.
        pin_memory: Copy batches into pinned memory.
        notes: Filled in by a column at its end, e.g. with the wait of its exchange.
    """

    dataset: Any
    lengths: Int64s
    budget: int
    window: int = 256
    num_workers: int = 2
    prefetch: int | None = None
    rank: int = 0
    world_size: int = 1
    group: Any = None
    seed: int = 0
    pin_memory: bool = False
    notes: dict[str, float] = field(default_factory=dict)


def pad(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Rows padded to the longest, as a plain ``DataLoader`` does it."""
    ids = pad_sequence([sample["input_ids"] for sample in samples], batch_first=True)
    labels = pad_sequence(
        [sample["labels"] for sample in samples], batch_first=True, padding_value=IGNORE_INDEX
    )
    return {"input_ids": ids, "labels": labels}


def standard(job: Job, *, batch_size: int = 8, loader: Any = DataLoader) -> Iterator[Batch]:
    """PyTorch's ``DataLoader`` with a fixed batch size."""
    yield from loader(
        job.dataset,
        batch_size=batch_size,
        sampler=DistributedSampler(
            job.dataset, job.world_size, job.rank, shuffle=True, seed=job.seed
        ),
        collate_fn=pad,
        **_workers(job),
    )


def standard_safe(job: Job) -> Iterator[Batch]:
    """The largest fixed batch size that cannot exceed the budget; offline, for that size."""
    return standard(job, batch_size=max(1, job.budget // int(job.lengths.max())))


def stateful(job: Job) -> Iterator[Batch]:
    """torchdata's ``StatefulDataLoader`` with a fixed batch size."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return standard(job, loader=StatefulDataLoader)


def length_sorted(job: Job) -> Iterator[Batch]:
    """Fixed batches out of length-sorted windows; offline, since a sampler runs before the data."""
    return _planned(job, length_sorted_batches(job.lengths, job.window, 8, job.seed))


def gmt(job: Job) -> Iterator[Batch]:
    """The fewest batches within the budget over the whole epoch; offline oracle."""
    return _planned(job, minimum_batches(job.lengths, job.budget))


def bmt(job: Job) -> Iterator[Batch]:
    """Batches within the budget out of length buckets; offline oracle."""
    return _planned(job, bucketed_batches(job.lengths, job.budget, job.seed))


def packing(job: Job) -> Iterator[Batch]:
    """Greedy packing into rows of the budget's length, in order of arrival."""
    yield from DataLoader(_Packed(job), batch_size=None, **_workers(job))


def reference(job: Job) -> Iterator[Batch]:
    """The package ``online-dynamic-batching``, without its warm-up (which costs it batches)."""
    import odb  # type: ignore[import-not-found]  # of the other environment

    depth = job.prefetch or max(1, job.window // job.num_workers)
    loader = odb.ODBDataLoader(
        job.dataset,
        token_budget=job.budget,
        sampler=DistributedSampler(
            job.dataset, job.world_size, job.rank, shuffle=True, seed=job.seed
        ),
        collate_fn=pad,
        loss_scaling="exact",
        no_warmup=True,
        **{**_workers(job), "prefetch_factor": depth},
    )
    # It names its process group by this number; a second loader of one process would hang.
    loader._iter_random_seed = next(_REFERENCE_SEEDS)
    for batch in loader:
        odb.pop_step_info(batch, loss_scaling="exact")
        yield batch


def ours(job: Job, *, layout: str = "padded", **settings: Any) -> Iterator[Batch]:
    """``odb_loader``, by default with its default policy and worker threads."""
    from odb_nodes import PadCollate, odb_loader

    if job.prefetch is not None:
        settings["prefetch"] = job.prefetch
    with odb_loader(
        job.dataset,
        token_budget=job.budget,
        window=job.window,
        num_workers=job.num_workers,
        process_group=job.group,
        rank=job.rank,
        world_size=job.world_size,
        seed=job.seed,
        pin_memory=job.pin_memory,
        collate=PadCollate(layout="packed" if layout == "packed" else "padded"),
        **settings,
    ) as loader:
        for batch in loader:
            yield batch.tensors
        job.notes.update(loader.exchange_stats())


def ours_processes(job: Job) -> Iterator[Batch]:
    """``odb_loader`` with worker processes instead of threads."""
    return ours(job, worker_method="process")


def ours_tumbling(job: Job) -> Iterator[Batch]:
    """``odb_loader`` with the paper's policy."""
    return ours(job, policy="tumbling")


def ours_packed(job: Job) -> Iterator[Batch]:
    """``odb_loader`` with the packed layout: the same groups, without padding."""
    return ours(job, layout="packed")


COLUMNS: dict[str, Column] = {
    "standard-8": standard,
    "standard-safe": standard_safe,
    "stateful-8": stateful,
    "sorted": length_sorted,
    "packing": packing,
    "gmt": gmt,
    "bmt": bmt,
    "reference": reference,
    "ours": ours,
    "ours-processes": ours_processes,
    "ours-tumbling": ours_tumbling,
    "ours-packed": ours_packed,
}
WINDOWED = {"sorted", "reference", "ours", "ours-processes", "ours-tumbling", "ours-packed"}


def available(names: Sequence[str]) -> list[str]:
    """Those of the columns that can run in this environment."""
    return [name for name in names if name != "reference" or has_reference()]


def has_reference() -> bool:
    """The reference is installed, next to a torch that it runs on (older than 2.14)."""
    import importlib.util

    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return importlib.util.find_spec("odb") is not None and (major, minor) < (2, 14)


def with_dataset(job: Job, dataset: Any) -> Job:
    """The same job over other data; notes are not shared."""
    return replace(job, dataset=dataset, notes={})


def _workers(job: Job) -> dict[str, Any]:
    workers: dict[str, Any] = {"num_workers": job.num_workers, "pin_memory": job.pin_memory}
    if job.num_workers:
        workers["multiprocessing_context"] = "fork"  # the reference runs with nothing else
        if job.prefetch is not None:
            workers["prefetch_factor"] = job.prefetch
    return workers


def _planned(job: Job, batches: list[list[int]]) -> Iterator[Batch]:
    mine = deal(batches, job.world_size, job.seed)[job.rank]
    yield from DataLoader(job.dataset, batch_sampler=mine, collate_fn=pad, **_workers(job))


class _Packed(IterableDataset[dict[str, torch.Tensor]]):
    """Rows of packed samples; every worker packs a share of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        job, info = self._job, get_worker_info()
        sampler: DistributedSampler[Any] = DistributedSampler(
            job.dataset, job.world_size, job.rank, seed=job.seed
        )
        order = list(sampler)[info.id :: info.num_workers] if info else list(sampler)
        held: list[Sample] = []
        used = 0
        for index in order:
            sample = job.dataset[index]
            length = len(sample["input_ids"])
            if held and used + length > job.budget:
                yield pack(held, job.budget)
                held, used = [], 0
            held.append(sample)
            used += length
        if held:
            yield pack(held, job.budget)


def pack(samples: Sequence[Sample], size: int) -> dict[str, torch.Tensor]:
    """One row of ``size`` tokens, or longer if one sample is: ``[1, size]``."""
    lengths = [len(sample["input_ids"]) for sample in samples]
    rest = max(0, size - sum(lengths))
    runs = [*map(torch.arange, lengths), torch.arange(rest)]
    ids = [sample["input_ids"] for sample in samples] + [torch.zeros(rest, dtype=torch.long)]
    labels = [sample["labels"] for sample in samples] + [torch.full((rest,), IGNORE_INDEX)]
    return {
        "input_ids": torch.cat(ids)[None],
        "labels": torch.cat(labels)[None],
        "positions": torch.cat(runs)[None],
    }

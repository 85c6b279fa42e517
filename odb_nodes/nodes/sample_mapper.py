"""Node: views to samples, in workers, with a state that is only the cursor of the view."""

import logging
import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from odb_nodes.arguments import boolean, choice, function, integer, positive_number
from odb_nodes.errors import StateError
from odb_nodes.nodes.sampler_view import SamplerView
from odb_nodes.nodes.upstream import BaseNode
from odb_nodes.samples.prepare import (
    IndexedDataset,
    Outcome,
    Prepare,
    default_length,
    describe_error,
)
from odb_nodes.state.cursor import Positions
from odb_nodes.state.drops import DropLog
from odb_nodes.state.schema import MapperState, check_mapper_state
from odb_nodes.types import Sample, View
from odb_nodes.workers.at_exit import close_at_exit
from odb_nodes.workers.inline import Inline
from odb_nodes.workers.pool import Runner, WorkerPool
from odb_nodes.workers.randomness import Isolation
from odb_nodes.workers.worker import ProcessWorker, ThreadWorker

logger = logging.getLogger(__name__)
# Handing samples over one by one costs more than cheap transforms do: work in chunks. In numbers,
# 2 processes with NumPy samples: 10k samples/s one by one, 29k in chunks of 32 (docs/benchmarks.md)
_CHUNK = {"thread": 8, "process": 32}
_PROGRESS_AFTER_S = 2.0
_NO_SEED = 1 << 62  # above all that a state can hold


class SampleMapper(BaseNode[Sample]):
    """Yields ``dataset[index]`` after ``transform``, in the order of the view.

    Workers map a chunk of views at a time. The state is the view cursor after the last yielded
    sample, whatever is in flight, so it does not depend on the workers and nothing is mapped again
    to find the place.

    What dataset and transform draw from the global generators of ``random``, NumPy and torch
    depends on seed, epoch and position only, and the caller's own generators stay as they are.
    Threads share these generators, so there a transform that draws runs one sample at a time (a
    warning says so).

    Args:
        view: This rank's ``SamplerView``.
        dataset: Anything with ``__getitem__``.
        transform: ``raw -> data``, a mapping; None drops the sample (counted as "filtered").
        length: ``data -> int`` in tokens; default ``len(data["input_ids"])``.
        num_workers: 0 maps in the calling thread, or in one of its own with ``read_ahead``.
        method: "thread" or "process".
        rng_seed: If given, ``transform(raw, generator)`` gets a ``numpy.random.Generator`` that
            depends on this seed, epoch and position only, and this seed decides the global draws
            too; else the seed of the view does.
        on_error: "raise" the user's exception, with the dataset index as a note, or "skip" the
            sample (counted as "error"). What is not an ``Exception``, and ``StopIteration``, comes
            as a ``SampleError`` that names it.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None is the system's default.
        read_ahead: Samples to map ahead of the consumer in the background; 0 for no more than
            keeps the workers busy.
        persistent_workers: Keep worker processes over passes and resumes, until ``shutdown``;
            they do not see later changes of the dataset.
        timeout_s: Warn of a sample that takes longer than this many seconds.
    Raises:
        ValueError: An argument out of range.
    """

    def __init__(
        self,
        view: SamplerView,
        dataset: IndexedDataset,
        transform: Callable[..., Any] | None = None,
        *,
        length: Callable[[Any], int] | None = None,
        num_workers: int = 0,
        method: Literal["thread", "process"] = "thread",
        rng_seed: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        multiprocessing_context: str | None = None,
        read_ahead: int = 0,
        persistent_workers: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        _check_parts(view, dataset)
        function("transform", transform, "a function of a row")
        function("length", length, "a function of a sample's data")
        choice("on_error", on_error, ("raise", "skip"))
        self.view = view
        self.drops = DropLog()
        self._on_error = on_error
        self._rng_seed = (
            None if rng_seed is None else integer("rng_seed", rng_seed, least=0, below=_NO_SEED)
        )
        self._plan = _WorkerPlan(
            num_workers=num_workers,
            method=method,
            multiprocessing_context=multiprocessing_context,
            read_ahead=read_ahead,
            persistent_workers=persistent_workers,
            timeout_s=timeout_s,
        )
        self._isolation = self._plan.isolation()
        prepare = Prepare(
            dataset=dataset,
            transform=transform,
            length=length or default_length,
            rng_seed=self._rng_seed,
            seed=view.seed if self._rng_seed is None else self._rng_seed,
            isolation=self._isolation,
        )
        self._runner = self._plan.runner(prepare)
        weakref.finalize(self, self._runner.abandon).atexit = False
        close_at_exit(self)
        self._pass: Iterator[list[Outcome]] | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        state = None if initial_state is None else check_mapper_state(initial_state)
        if state is not None:
            self._check_rng_seed(state)
        self._pass = None
        self._runner.reopen(keep_workers=self._plan.persistent_workers)
        if self._isolation is not None:
            self._isolation.begin_pass()
        self.view.reset(None if state is None else state["view"])
        self.drops = DropLog() if state is None else DropLog.from_state(state["drops"])
        self._cursor = self.view.cursor
        self._taken = self._cursor.taken
        self._ready: Iterator[Outcome] = iter(())
        self._error: BaseException | None = None
        self._closed = False

    def next(self) -> Sample:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise StopIteration
        while True:
            for outcome in self._ready:
                if outcome.error is not None and self._on_error == "raise":
                    self._error = outcome.error
                    raise outcome.error
                self._taken += 1
                if outcome.error is not None:
                    self.drops.add(outcome.view, "error", describe_error(outcome.error))
                elif outcome.data is None:
                    self.drops.add(outcome.view, "filtered")
                else:
                    return Sample(outcome.view, outcome.data, outcome.length)
            self._ready = iter(self._next_chunk())

    def get_state(self) -> MapperState:  # type: ignore[override]
        return {
            "view": self.view.state_of(self._cursor.advanced(self._taken)),
            "drops": self.drops.to_state(),
            "rng_seed": self._rng_seed,
        }

    def check_state(self, state: Any) -> None:
        """Raise ``StateError`` if ``reset`` would not accept this state; changes nothing."""
        known = check_mapper_state(state)
        self._check_rng_seed(known)
        self.view.check_state(known["view"])

    @property
    def num_workers(self) -> int:
        """Workers that map."""
        return self._plan.num_workers

    def views_at(self, positions: Positions) -> list[View]:
        """The current epoch's views at these positions."""
        return self.view.views_at(positions)

    def rebuild(self, views: Sequence[View]) -> list[Sample]:
        """Map these views again, in the workers; logs progress if it takes over 2 s.

        Raises:
            StateError: A view is dropped now; a rebuilt sample must be the sample it was.
            Exception: What the dataset or the transform raised.
        """
        chunks = self._plan.chunks(views)
        samples: list[Sample] = []
        started = shown = time.monotonic()
        pass_ = self._runner.run(chunks)
        try:
            for outcomes in pass_:
                samples += [_rebuilt(outcome) for outcome in outcomes]
                now = time.monotonic()
                if now - started > _PROGRESS_AFTER_S and now - shown > _PROGRESS_AFTER_S:
                    shown = now
                    logger.info("rebuilt %d of %d held samples", len(samples), len(views))
        finally:
            self._runner.finish(pass_)  # the workers stay: the pass itself needs them next
        if len(samples) != len(views):
            raise StateError("closed while held samples were rebuilt: load the state again")
        return samples

    def pause(self) -> None:
        """End the pass early; persistent workers stay, for the next ``reset``."""
        self._closed = True
        if self._plan.persistent_workers and self._pass is not None:
            self._runner.finish(self._pass)
        else:
            self._runner.close()

    def shutdown(self) -> None:
        """End the worker threads and processes; the next ``reset`` starts new ones."""
        self._closed = True
        self._runner.close()

    def _next_chunk(self) -> list[Outcome]:
        if self._pass is None:
            self._pass = self._runner.run(self.view.chunks(self._plan.chunk))
        try:
            return next(self._pass)
        except StopIteration:
            self.pause()
            raise
        except Exception as error:  # a worker died: the others are of no use
            self._error = error
            self._runner.close()
            raise

    def _check_rng_seed(self, state: MapperState) -> None:
        saved = state.get("rng_seed", self._rng_seed)  # absent from older states
        if saved != self._rng_seed:
            raise StateError(
                f"state has rng_seed {saved}, this run has {self._rng_seed}: its samples could not "
                "be mapped again as they were, use the same rng_seed"
            )


class _WorkerPlan:
    """Which workers map, and how far ahead; see ``SampleMapper``."""

    def __init__(
        self,
        *,
        num_workers: int,
        method: str,
        multiprocessing_context: str | None,
        read_ahead: int,
        persistent_workers: bool,
        timeout_s: float,
    ) -> None:
        choice("method", method, tuple(_CHUNK))
        if multiprocessing_context is not None:
            contexts = multiprocessing.get_all_start_methods()
            choice("multiprocessing_context", multiprocessing_context, contexts)
        self.num_workers = integer("num_workers", num_workers, least=0)
        self.read_ahead = integer("read_ahead", read_ahead, least=0)
        self.timeout_s = positive_number("timeout_s", timeout_s)
        self.persistent_workers = boolean("persistent_workers", persistent_workers)
        self.processes = method == "process" and self.num_workers > 0
        if self.persistent_workers and not self.processes:
            raise ValueError(
                "persistent_workers needs worker processes, got "
                f"num_workers={num_workers}, method={method!r}: threads start at once"
            )
        self.context = multiprocessing_context
        self.chunk = _CHUNK[method] if self.num_workers else 1

    @property
    def background(self) -> bool:
        """Whether samples are mapped while the consumer does something else."""
        return self.num_workers > 0 or self.read_ahead > 0

    def isolation(self) -> Isolation | None:
        return None if self.processes else Isolation(shared=self.background)

    def runner(self, prepare: Prepare) -> Runner:
        if not self.background:
            return Inline(prepare, self.timeout_s)
        start: Any = partial(ThreadWorker, prepare)
        if self.processes:
            start = partial(ProcessWorker, prepare, multiprocessing.get_context(self.context))
        workers = max(1, self.num_workers)
        depth = 2 * self.num_workers + self.read_ahead // self.chunk
        return WorkerPool(start, workers, depth=max(1, depth), timeout_s=self.timeout_s)

    def chunks(self, views: Sequence[View]) -> Iterator[Sequence[View]]:
        return iter([views[i : i + self.chunk] for i in range(0, len(views), self.chunk)])


def _check_parts(view: Any, dataset: Any) -> None:
    if not isinstance(view, SamplerView):
        raise ValueError(f"view must be a SamplerView, got {type(view).__name__}")
    if not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"dataset must have __getitem__, got {type(dataset).__name__}: wrap an iterable in a "
            "StreamView instead"
        )
    if hasattr(dataset, "__len__") and len(dataset) < view.num_samples:
        raise ValueError(
            f"view has {view.num_samples} samples, the dataset {len(dataset)}: build the view "
            "with len(dataset)"
        )


def _rebuilt(outcome: Outcome) -> Sample:
    if outcome.error is not None:
        raise outcome.error
    if outcome.data is None:
        raise StateError(
            f"{outcome.view} was a sample when the state was saved, the transform drops it now: "
            "transforms must be deterministic, but for what they draw from their generators"
        )
    return Sample(outcome.view, outcome.data, outcome.length)

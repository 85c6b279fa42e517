"""Node: views to samples, in workers, with a state that is only the cursor of the view."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from torchdata.nodes import BaseNode, Prefetcher

from odb_nodes.errors import StateError
from odb_nodes.nodes.sampler_view import SamplerView
from odb_nodes.nodes.upstream import WatchedMapper, stop
from odb_nodes.samples.prepare import IndexedDataset, Outcome, Prepare, default_length, to_sample
from odb_nodes.state.cursor import Positions
from odb_nodes.state.drops import DropLog
from odb_nodes.state.schema import check_mapper_state
from odb_nodes.types import Sample, View

logger = logging.getLogger(__name__)
# Per-item queues cost more than cheap transforms do: work in chunks. In numbers, 2 processes with
# NumPy samples: 10k samples/s one by one, 29k in chunks of 32 (docs/benchmarks.md).
_CHUNK = {"thread": 8, "process": 32}
_PROGRESS_AFTER_S = 2.0


class _Chunks(BaseNode[list[View]]):
    """Chunks of views of one pass. Keeps no state: ``SampleMapper`` counts what came out."""

    def __init__(self, chunks: Iterator[list[View]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._chunks = chunks

    def next(self) -> list[View]:
        return next(self._chunks)

    def get_state(self) -> dict[str, Any]:
        return {"unused": 0}  # torchdata takes an empty state for a missing one


class SampleMapper(BaseNode[Sample]):
    """Yields ``dataset[index]`` after ``transform``, in the order of the view.

    Torchdata's ``ParallelMapper`` does the work, a chunk of views at a time. The state is the view
    cursor after the last yielded sample, whatever is in flight, so it does not depend on the
    workers and nothing is mapped again to find the place.

    Args:
        view: This rank's ``SamplerView``.
        dataset: Anything with ``__getitem__``.
        transform: ``raw -> data``, a mapping; None drops the sample (counted as "filtered").
        length: ``data -> int`` in tokens; default ``len(data["input_ids"])``.
        num_workers: 0 maps in the calling thread.
        method: "thread" or "process".
        rng_seed: If given, ``transform(raw, generator)`` gets a ``numpy.random.Generator`` that
            depends on seed, epoch and position only.
        on_error: "raise" the user's exception, with the dataset index as a note, or "skip" the
            sample (counted as "error").
        multiprocessing_context: "fork", "spawn" or "forkserver"; None is the system's default.
        read_ahead: Samples to map ahead of the consumer in a background thread; 0 for none.
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
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if num_workers < 0:
            raise ValueError(f"num_workers must be at least 0, got {num_workers}")
        if method not in _CHUNK:
            raise ValueError(f"method must be 'thread' or 'process', got {method!r}")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        self.view = view
        self._portable = method == "process" and num_workers > 0
        self._on_error = on_error
        self._prepare = Prepare(
            dataset=dataset,
            transform=transform,
            length=length or default_length,
            rng_seed=rng_seed,
            portable=self._portable,
        )
        self._workers: dict[str, Any] = {
            "map_fn": self._prepare,
            "num_workers": num_workers,
            "method": method,
            "multiprocessing_context": multiprocessing_context,
            "snapshot_frequency": 0,  # our cursor is the state
        }
        self._chunk = _CHUNK[method] if num_workers else 1
        self._read_ahead = read_ahead
        self._source: BaseNode[list[Outcome]] | None = None
        self.drops = DropLog()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.shutdown()
        if initial_state is None:
            self.view.reset(None)
            self.drops = DropLog()
        else:
            state = check_mapper_state(initial_state)
            self.view.reset(state["view"])
            self.drops = DropLog.from_state(state["drops"])
        self._cursor = self.view.cursor
        self._taken = self._cursor.taken
        self._ready: Iterator[Outcome] = iter(())
        self._error: Exception | None = None
        self._closed = False

    def next(self) -> Sample:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise StopIteration
        source = self._source = self._source or self._open()
        while True:
            for outcome in self._ready:
                if outcome.error is not None and self._on_error == "raise":
                    self._error = outcome.error
                    raise outcome.error
                self._taken += 1
                if outcome.error is not None:
                    self.drops.add(outcome.view, "error", repr(outcome.error))
                elif outcome.data is None:
                    self.drops.add(outcome.view, "filtered")
                else:
                    return to_sample(outcome, self._portable)
            self._ready = iter(self._next_chunk(source))

    def get_state(self) -> dict[str, Any]:
        return {
            "view": self.view.state_of(self._cursor.advanced(self._taken)),
            "drops": self.drops.to_state(),
        }

    def check_state(self, state: Any) -> None:
        """Raise ``StateError`` if ``reset`` would not accept this state; changes nothing."""
        self.view.check_state(check_mapper_state(state)["view"])

    def views_at(self, positions: Positions) -> list[View]:
        """The current epoch's views at these positions."""
        return self.view.views_at(positions)

    def rebuild(self, views: Sequence[View]) -> list[Sample]:
        """Map these views again, in the worker pool; logs progress if it takes over 2 s.

        Raises:
            StateError: A view is dropped now; a rebuilt sample must be the sample it was.
            Exception: What the dataset or the transform raised.
        """
        size = self._chunk
        chunks = [list(views[i : i + size]) for i in range(0, len(views), size)]
        pool = WatchedMapper(_Chunks(iter(chunks)), **self._workers)
        samples: list[Sample] = []
        started = shown = time.monotonic()
        try:
            for outcomes in pool:
                samples += [self._rebuilt(outcome) for outcome in outcomes]
                now = time.monotonic()
                if now - started > _PROGRESS_AFTER_S and now - shown > _PROGRESS_AFTER_S:
                    shown = now
                    logger.info("rebuilt %d of %d held samples", len(samples), len(views))
        finally:
            stop(pool)
        return samples

    def shutdown(self) -> None:
        """End the worker threads and processes; the next ``reset`` starts new ones."""
        self._closed = True
        if self._source is not None:
            stop(self._source)
            self._source = None

    def _next_chunk(self, source: BaseNode[list[Outcome]]) -> list[Outcome]:
        try:
            return next(source)
        except StopIteration:
            raise
        except Exception as error:  # from the read-ahead thread it comes as text in a new one
            self._error = self._pool.died or error
            raise self._error from None

    def _open(self) -> BaseNode[list[Outcome]]:
        """A new chain for each pass: a straggler of the last one must not read our views."""
        pool: WatchedMapper[list[Outcome]] = WatchedMapper(
            _Chunks(self.view.chunks(self._chunk)), **self._workers
        )
        self._pool = pool
        if not self._read_ahead:
            return pool
        depth = max(1, self._read_ahead // self._chunk)
        return Prefetcher(pool, prefetch_factor=depth, snapshot_frequency=0)

    def _rebuilt(self, outcome: Outcome) -> Sample:
        if outcome.error is not None:
            raise outcome.error
        if outcome.data is None:
            raise StateError(
                f"{outcome.view} was a sample when the state was saved, the transform drops it "
                "now: transforms must be deterministic, pass rng_seed for random ones"
            )
        return to_sample(outcome, self._portable)

"""What torchdata 0.11 lacks: an end for its background iterators, and a look at its workers."""

import contextlib
import os
import queue
from collections.abc import Sequence
from typing import Any, TypeVar

from torchdata.nodes import BaseNode, Loader, Mapper, ParallelMapper, PinMemory, Prefetcher
from torchdata.nodes.map import _ParallelMapperIter

from odb_nodes.errors import WorkerDiedError

__all__ = ["BaseNode", "Loader", "Mapper", "ParallelMapper", "PinMemory", "Prefetcher"]
T = TypeVar("T")


class WatchedMapper(ParallelMapper[T]):
    """A ``ParallelMapper`` that notices dead worker processes; torchdata's waits for ever.

    Attributes:
        died: What ``next`` raised when a worker was gone, for consumers in another thread.
    """

    died: WorkerDiedError | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        it: Any = self._it
        it = it._it
        if self.method == "process" and self.num_workers:
            it._out_q = _WatchedQueue(it._out_q, it._workers)

    def next(self) -> T:
        try:
            item: T = super().next()
            return item
        except WorkerDiedError as error:
            self.died = error
            raise


class _WatchedQueue:
    """A queue that looks after the worker processes whenever a ``get`` times out."""

    def __init__(self, results: Any, workers: Sequence[Any]) -> None:
        self._results = results
        self._workers = workers

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return self._results.get(block, timeout)
        except queue.Empty:
            for worker in self._workers:
                if worker.exitcode is not None:
                    raise WorkerDiedError(_epitaph(worker)) from None
            raise


def _epitaph(worker: Any) -> str:
    how = f"ended with exit code {worker.exitcode}"
    if worker.exitcode < 0:
        how = f"was killed by signal {-worker.exitcode}"
    return (
        f"worker process {worker.pid}, which runs dataset and transform, {how}: if the machine is "
        "short of memory, use fewer workers or smaller samples"
    )


def iterators(node: Any) -> list[Any]:
    """Torchdata's internal iterators below a node, the innermost first."""
    found: list[Any] = []
    inner = getattr(node, "_it", None)
    for part in (getattr(node, "source", None), getattr(node, "_source", None), inner):
        if part is not None:
            found += [it for it in iterators(part) if it not in found]
    if hasattr(inner, "_shutdown") and inner not in found:
        found.append(inner)
    return found


def stop(node: Any) -> None:
    """End the threads and worker processes below a node.

    The innermost first: an outer thread that waits for an inner one then ends at once. A worker
    process that is deep in a transform is terminated; a thread can only be waited for.
    """
    for it in iterators(node):
        it._shutdown()
        for worker in getattr(it, "_workers", []):
            if worker.is_alive() and hasattr(worker, "terminate"):
                worker.terminate()
                worker.join()
        if hasattr(getattr(it, "_in_q", None), "cancel_join_thread"):
            it._in_q.cancel_join_thread()  # nobody reads it any more: do not wait for that
            it._in_q.close()


def abandon(node: Any) -> None:
    """Tell the threads below a node to end, without waiting: for use in a garbage collection.

    Collection can happen in any thread, also in one of these, which then must not join itself.
    """
    for it in iterators(node):
        for event in ("_stop_event", "_stop", "_mp_stop"):
            if hasattr(it, event):
                getattr(it, event).set()
        for thread in ("_thread", "_read_thread", "_sort_thread"):
            it.__dict__.pop(thread, None)
        if hasattr(it, "_workers"):
            it._workers = []


def _quiet_in_forked_child() -> None:
    """Let a forked child drop the ``ParallelMapper`` objects that it inherited in silence.

    Their ``__del__`` asks for worker processes that only the parent may wait for.
    """
    original: Any = _ParallelMapperIter.__del__

    def quiet(self: Any) -> None:
        with contextlib.suppress(AssertionError):
            original(self)

    setattr(_ParallelMapperIter, "__del__", quiet)  # noqa: B010  # mypy: methods are final


os.register_at_fork(after_in_child=_quiet_in_forked_child)

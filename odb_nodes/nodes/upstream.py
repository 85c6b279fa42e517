"""All that is taken from torchdata, and what its 0.11 lacks.

Every name, private attribute and shape of a state that this package relies on is named here and
nowhere else, and ``tests/nodes/test_upstream.py`` checks each of them.
"""

import contextlib
import os
import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torchdata.nodes import (
    BaseNode,
    Batcher,
    IterableWrapper,
    Loader,
    Mapper,
    ParallelMapper,
    PinMemory,
    Prefetcher,
    SamplerWrapper,
)
from torchdata.nodes.map import _ParallelMapperIter

from odb_nodes.errors import WorkerDiedError

__all__ = [
    "BaseNode",
    "Batcher",
    "IterableWrapper",
    "Loader",
    "Mapper",
    "ParallelMapper",
    "PinMemory",
    "Prefetcher",
    "SamplerWrapper",
    "WatchedMapper",
    "abandon",
    "join_threads",
    "readers",
    "sources_of",
    "state_around",
    "stop",
    "stop_reading",
]

T = TypeVar("T")
_ITERATOR = "_it"  # of most nodes: what does their work
_STOP_EVENTS = ("_stop_event", "_stop", "_mp_stop")  # of iterators: set to end their threads
_THREADS = ("_thread", "_read_thread", "_sort_thread")
_WORKERS = "_workers"  # of a ParallelMapper's iterator: threads or processes


# Graphs


def sources_of(node: Any) -> list[Any]:
    """The nodes that a node keeps: its sources, and nodes that it is made of."""
    found: list[Any] = []
    for value in list(getattr(node, "__dict__", {}).values()):
        several = value.values() if isinstance(value, Mapping) else value
        parts = several if isinstance(value, Mapping | list | tuple) else [value]
        found += [part for part in parts if isinstance(part, BaseNode) and part not in found]
    return found


# Threads and processes of nodes


def stop(node: Any) -> None:
    """End the threads and worker processes below a node.

    The innermost first: an outer thread that waits for an inner one then ends at once. A worker
    process that is deep in a transform is terminated; a thread can only be waited for.
    """
    for it in _iterators(node):
        if hasattr(it, "abandon"):  # one of ours
            it.close()
            continue
        it._shutdown()
        for worker in getattr(it, _WORKERS, []):
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
    for it in _iterators(node):
        if hasattr(it, "abandon"):
            it.abandon()
            continue
        stop_reading([it])
        for thread in _THREADS:
            it.__dict__.pop(thread, None)
        if hasattr(it, _WORKERS):
            setattr(it, _WORKERS, [])


def readers(node: Any, end: Any) -> list[Any]:
    """Torchdata's iterators between ``node`` and ``end`` that read their source in a thread."""
    found = (getattr(part, _ITERATOR, None) for part in _between(node, end))
    return [it for it in found if hasattr(it, "_stop_event")]


def stop_reading(iterators: list[Any]) -> None:
    """Let no thread of these iterators begin another item."""
    for it in iterators:
        for event in _STOP_EVENTS:
            if hasattr(it, event):
                getattr(it, event).set()


def join_threads(iterators: list[Any], timeout_s: float | None = None) -> None:
    """Wait for the threads of ``readers`` to end; each at most ``timeout_s``."""
    for it in iterators:
        it._thread.join(timeout_s)


def _iterators(node: Any) -> list[Any]:
    """What runs threads or processes below a node, the innermost first."""
    found: list[Any] = []
    inner = getattr(node, _ITERATOR, None)
    for part in (*sources_of(node), inner):
        if part is not None:
            found += [it for it in _iterators(part) if it not in found]
    for it in (inner, getattr(node, "_runner", None)):
        if (hasattr(it, "_shutdown") or hasattr(it, "abandon")) and it not in found:
            found.append(it)
    return found


def _between(node: Any, end: Any) -> Iterator[Any]:
    while node is not end:
        yield node
        node = node.source


# States


def state_around(node: Any, end: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The state of ``end`` as the state of ``node``, which reads it through others.

    A ``Mapper`` puts the state of its source into that of its iterator, a ``Prefetcher`` keeps it
    as a snapshot with the number of items since.
    """
    for part in reversed(list(_between(node, end))):
        if isinstance(part, Prefetcher | PinMemory):
            state = {"snapshot": state, "steps_since_snapshot": 0}
        else:
            state = {part.IT_STATE_KEY: {"source": state}}
    return state


# Workers of streams


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


# Patches


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

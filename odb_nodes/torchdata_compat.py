"""Ending torchdata's background iterators, for which torchdata 0.11 has no public way."""

import contextlib
import os
from typing import Any

from torchdata.nodes.map import _ParallelMapperIter


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

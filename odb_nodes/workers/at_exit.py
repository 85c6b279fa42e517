"""A clean end of the interpreter, whatever was left open.

Python kills daemon threads at exit. One that is inside a torch operation then takes the process
down with "terminate called" and exit code 134, so nothing of ours may run any more by that time.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from typing import Protocol

logger = logging.getLogger(__name__)
_PATIENCE_S = 5.0  # with threads that are deep in a sample
_OURS = ("odb_nodes.", "torchdata.")


class Closeable(Protocol):
    """Something with threads."""

    def shutdown(self) -> None: ...


_open: dict[int, tuple[int, "weakref.ref[Closeable]"]] = {}  # by id: process, and who


def close_at_exit(closeable: Closeable) -> None:
    """Call ``shutdown`` at exit if it still exists then, of the youngest first."""
    key = id(closeable)
    _open.pop(key, None)  # of one that is gone: keep the order of creation
    _open[key] = os.getpid(), weakref.ref(closeable, lambda _: _open.pop(key, None))


def close_all() -> None:
    """Shut down whatever is open, and wait a moment for its threads."""
    for pid, reference in reversed(list(_open.values())):
        closeable = reference()
        if closeable is None or pid != os.getpid():  # else of the process that forked this one
            continue
        try:
            closeable.shutdown()
        except Exception as error:
            logger.debug("closing %s at exit: %r", type(closeable).__name__, error)
    deadline = time.monotonic() + _PATIENCE_S
    for thread in threading.enumerate():
        module = getattr(getattr(thread, "_target", None), "__module__", None) or ""
        if thread.daemon and module.startswith(_OURS):
            thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(close_all)

"""One line for a failed run, on rank 0, whichever rank failed.

The first rank with an error of its own writes its line to the ranks' store. A thread of rank 0
looks there every half second, so that it can say the line while its main thread waits for a rank
that will not come. A rank whose error only follows from another's end keeps quiet.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from torch.distributed import distributed_c10d

_FAILURE, _TOLD = "odb/failure", "odb/told"
LOOK_S = 0.5
TELL_S = 5.0  # for rank 0 to print another rank's line
BAD_INPUT = 2


class Teller:
    """Says how the run failed; before :meth:`connect`, every rank speaks for rank 0.

    Args:
        rank: Global rank.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._store: Any = None
        self._lock = threading.Lock()
        self._done = False

    def connect(self) -> None:
        """Use the store of the process group, which must exist."""
        if distributed_c10d.get_world_size() == 1:
            return
        store = distributed_c10d._get_default_store()
        with contextlib.suppress(RuntimeError, NotImplementedError):
            store = store.clone()
        self._store = store
        if self.rank == 0:
            threading.Thread(target=self._look, name="failures", daemon=True).start()

    def own(self, line: str) -> None:
        """Have the line printed once: the first of all ranks' lines counts."""
        if self.rank == 0:
            self._say(line)
            return
        if self._store is None:
            return  # all ranks fail alike before they know each other
        time.sleep(2 * LOOK_S)  # most errors are the same on all ranks: rank 0 goes first
        with contextlib.suppress(Exception):  # rank 0 and its store may be gone
            mine = self._store.compare_set(_FAILURE, "", f"rank {self.rank}: {line}")
            if mine.decode() != f"rank {self.rank}: {line}":
                return
            self._store.wait([_TOLD], timedelta(seconds=TELL_S))
            return
        print(f"error: rank {self.rank}: {line}", file=sys.stderr, flush=True)

    def followed(self, line: str) -> bool:
        """For an error that another rank's end caused: its line, unless a better one comes.

        Returns:
            Whether somebody has said something; else the launcher has to, who knows which process
            ended, and how.
        """
        time.sleep(2 * LOOK_S)
        with self._lock:
            if self._done:
                return True
        if "ODB_LAUNCHER" in os.environ:
            return False
        if self.rank == 0:
            self._say(line)
        return True

    def _say(self, line: str) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            print(f"error: {line}", file=sys.stderr, flush=True)
            if self._store is not None:
                with contextlib.suppress(Exception):
                    self._store.compare_set(_FAILURE, "", line)
                    self._store.set(_TOLD, "yes")

    def _look(self) -> None:
        with contextlib.suppress(Exception):  # the store goes when the run ends
            while not self._done:
                time.sleep(LOOK_S)
                if self._store.check([_FAILURE]):
                    self._say(self._store.get(_FAILURE).decode())
                    leave(BAD_INPUT)


current: Teller | None = None
at_end: list[Callable[[], None]] = []


def clean_up() -> None:
    """Call what ``at_end`` holds; no error of it counts."""
    while at_end:
        with contextlib.suppress(Exception):
            at_end.pop()()


def leave(code: int) -> NoReturn:
    """End this process whatever its threads are doing, after :func:`clean_up`."""
    clean_up()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    # Not sys.exit: a collective that waits for a peer must not keep the process alive.
    os._exit(code)

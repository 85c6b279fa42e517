"""One worker: a thread of this process, or a process behind a pipe."""

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any, Protocol

import torch

from odb_nodes.errors import WorkerDiedError
from odb_nodes.workers.randomness import own_generators
from odb_nodes.workers.watch import CANCEL, INDEX, SINCE, SLOT_SIZE, Slot, new_slot

_LOOK_S = 1.0  # between two looks whether a process, or its parent, is still there
_EXIT_S = 2.0  # for a process to end once it is asked to


class Task(Protocol):
    """What workers do. None of its methods raises."""

    def __call__(self, item: Any, slot: Slot, /) -> Any:
        """Map one item; calls ``begin_item`` when it begins."""

    def pack(self, outcomes: list[Any], /) -> bytes:
        """Outcomes as bytes for another process."""

    def unpack(self, packed: bytes, items: Sequence[Any], /) -> list[Any]:
        """The outcomes of these items again."""


class Worker(Protocol):
    """Maps chunks one after the other: ``send`` some, then ``receive`` in the same order."""

    name: str
    slot: Slot
    ahead: int  # chunks to send before the first is received

    def send(self, chunk: Sequence[Any]) -> None: ...

    def receive(self) -> list[Any]: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None:
        """End what it does now, if that is possible."""

    def close(self) -> None:
        """End it for good."""


def map_chunk(task: Task, chunk: Sequence[Any], slot: Slot) -> list[Any]:
    """The outcomes of a chunk; of its first items only, once the slot says to stop."""
    outcomes = []
    for item in chunk:
        if slot[CANCEL]:
            break
        slot[SINCE] = 0.0  # it may have to wait before it begins
        outcomes.append(task(item, slot))
    slot[SINCE] = 0.0
    return outcomes


class ThreadWorker:
    """Maps in the thread that calls ``receive``."""

    ahead = 1

    def __init__(self, task: Task, number: int) -> None:
        self.name = f"worker thread {number}"
        self.slot = new_slot()
        self._task = task
        self._chunk: Sequence[Any] = ()

    def send(self, chunk: Sequence[Any]) -> None:
        self._chunk = chunk

    def receive(self) -> list[Any]:
        return map_chunk(self._task, self._chunk, self.slot)

    def is_alive(self) -> bool:
        return True

    def kill(self) -> None:
        """A thread cannot be ended: it stops before its next item."""

    def close(self) -> None:
        pass


class ProcessWorker:
    """Maps in a process of its own.

    Each process has its own pipe, so that one that is killed in the middle of a message leaves no
    lock behind that others would wait for.

    Args:
        task: Goes to the process once, when it starts.
        context: Of ``multiprocessing``: how to start it.
        number: For the name of the process.
    Raises:
        Exception: The task does not pickle, with a note that says where it must.
    """

    ahead = 2  # it maps one while the results of the one before are read

    def __init__(self, task: Task, context: Any, number: int) -> None:
        self._task = task
        self._sent: list[Sequence[Any]] = []
        self._conn, child = context.Pipe()
        self.slot: Any = context.RawArray("d", SLOT_SIZE)
        self._process = context.Process(
            target=_serve, args=(child, task, self.slot), name=f"odb-worker-{number}", daemon=True
        )
        try:
            self._process.start()
        except Exception as error:
            error.add_note(
                "dataset, transform and length must pickle for worker processes that are not "
                "forked: define them at the top of a module, or use threads"
            )
            raise
        finally:
            child.close()
        self.name = f"worker process {self._process.pid}"

    def send(self, chunk: Sequence[Any]) -> None:
        self._sent.append(chunk)
        try:
            self._conn.send_bytes(pickle.dumps(chunk))
        except OSError:
            raise self._death() from None

    def receive(self) -> list[Any]:
        """The outcomes of the chunk sent longest ago.

        Raises:
            WorkerDiedError: The process is gone.
        """
        while True:
            ready = wait([self._conn, self._process.sentinel], _LOOK_S)
            if self._conn in ready or self._conn.poll():
                try:
                    packed = self._conn.recv_bytes()
                except (EOFError, OSError):
                    raise self._death() from None
                return self._task.unpack(packed, self._sent.pop(0))
            if not self.is_alive():
                raise self._death()

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def kill(self) -> None:
        if self.is_alive():
            self._process.terminate()

    def close(self) -> None:
        if self._sent:
            self.kill()
        with contextlib.suppress(OSError):
            self._conn.send_bytes(b"")
        self._process.join(_EXIT_S)
        if self.is_alive():
            self._process.kill()
            self._process.join()
        self._conn.close()

    def _death(self) -> WorkerDiedError:
        self._process.join(_EXIT_S)  # the pipe closes a moment before the process is gone
        code = self._process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        at = f" at dataset[{int(self.slot[INDEX])}]" if self.slot[SINCE] else ""
        return WorkerDiedError(
            f"{self.name}, which runs dataset and transform, {how}{at}: if the machine is short "
            "of memory, use fewer workers or smaller samples"
        )


def _serve(conn: Any, task: Task, slot: Slot) -> None:
    """A worker process: outcomes for chunks, until an empty message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler that a fork inherits
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    own_generators()
    with contextlib.suppress(EOFError, OSError):
        while request := conn.recv_bytes():
            conn.send_bytes(task.pack(map_chunk(task, pickle.loads(request), slot)))


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, killed maybe: nobody else would end it."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)

"""A pool of workers that maps chunks in order, ahead of their consumer.

Who owns a chunk, at every moment exactly one of: its pass (not taken yet), one worker (in work),
the results of its pass, the consumer. A result can only be stored in the pass that its chunk came
from, so whatever a straggler of an earlier pass still brings is never seen by a later one.

A thread drives each worker: it takes a chunk from the newest pass that wants one, gives it to the
worker and stores what comes back. Several passes can be open at once, for a few samples may have to
be mapped again in the middle of an epoch. The driving threads end as soon as no open pass has a
chunk left; the workers stay until ``close``.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from odb_nodes.workers.watch import CANCEL, Watch
from odb_nodes.workers.worker import Worker

logger = logging.getLogger(__name__)
_PATIENCE_S = 0.5  # with a worker that is to end: a process is killed then, a thread left behind
_DRAIN_S = 5.0  # with a worker that is to stay, until it has come to the end of an item
_LOOK_S = 1.0  # between two looks whether the pool was abandoned
Chunks = Iterator[Sequence[Any]]


class Runner(Protocol):
    """What maps chunks: a pool, or the calling thread."""

    def run(self, chunks: Chunks) -> Iterator[list[Any]]:
        """The outcomes of each chunk in order; consume them in one thread."""

    def finish(self, pass_: Iterator[list[Any]]) -> None:
        """Forget what ``run`` returned, also before its end."""

    def close(self) -> None:
        """Stop all passes and end all workers; ``run`` gives nothing until ``reopen``."""

    def reopen(self, *, keep_workers: bool) -> None:
        """Stop all passes, and be ready for new ones."""

    def abandon(self) -> None:
        """Stop and end everything without waiting for a thread: for a garbage collection."""


class Pass:
    """Outcomes of one sequence of chunks, chunk by chunk in order. An iterator.

    Args:
        changed: Held while anything of a pass is read or changed, and notified of changes.
        chunks: What to map.
        depth: Chunks in work, or done and not consumed, at most.
    """

    def __init__(self, changed: threading.Condition, chunks: Chunks, depth: int) -> None:
        self.ended = False  # no chunk is left to take
        self.stopped = False
        self._changed = changed
        self._chunks = chunks
        self._depth = depth
        self._taken = self._given = 0
        self._done: dict[int, list[Any] | BaseException] = {}

    def __iter__(self) -> "Pass":
        return self

    def __next__(self) -> list[Any]:
        with self._changed:
            while self._given not in self._done:
                if self.stopped or (self.ended and self._given == self._taken):
                    raise StopIteration
                self._changed.wait(_LOOK_S)
            result = self._done.pop(self._given)
            self._given += 1
            self._changed.notify_all()
        if isinstance(result, BaseException):
            raise result
        return result

    def take(self) -> tuple[int, Sequence[Any]] | None:
        """The next chunk and its number; None if there is none now, or no room for its outcomes."""
        with self._changed:
            if self.ended or self.stopped or self._taken - self._given >= self._depth:
                return None
            chunk = next(self._chunks, None)
            if chunk is None:
                self.ended = True
                self._changed.notify_all()
                return None
            self._taken += 1
            return self._taken - 1, chunk

    def put(self, number: int, result: list[Any] | BaseException) -> None:
        """Store what came of a chunk."""
        with self._changed:
            if not self.stopped:
                self._done[number] = result
            self._changed.notify_all()


class WorkerPool:
    """Workers of one kind, started when they are first needed.

    Args:
        start: Makes a worker, given its number.
        num_workers: How many.
        depth: Chunks that a pass has in work, or done and not consumed, at most.
        timeout_s: Warn of an item that takes longer.
    """

    def __init__(
        self, start: Callable[[int], Worker], num_workers: int, *, depth: int, timeout_s: float
    ) -> None:
        self._start = start
        self._num_workers = num_workers
        self._depth = depth
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._passes: list[Pass] = []
        self._workers: list[Worker] = []
        self._drivers: dict[Worker, threading.Thread] = {}
        self._watch: Watch | None = None
        self._open = True

    def run(self, chunks: Chunks) -> Pass:
        """A pass over ``chunks``.

        Raises:
            Exception: A worker process could not be started.
        """
        with self._changed:
            pass_ = Pass(self._changed, chunks, self._depth)
            if not self._open:  # closed while its consumer was on the way here
                pass_.stopped = True
                return pass_
            self._passes.append(pass_)
            self._hire()
            for worker in self._workers:
                if worker not in self._drivers:
                    driver = threading.Thread(target=self._drive, args=(worker,), daemon=True)
                    self._drivers[worker] = driver
                    driver.start()
            self._watch = self._watch or Watch(
                [(worker.name, worker.slot) for worker in self._workers], self._timeout_s
            )
            return pass_

    def finish(self, pass_: Iterator[list[Any]]) -> None:
        assert isinstance(pass_, Pass)
        with self._changed:
            pass_.stopped = True
            if pass_ in self._passes:
                self._passes.remove(pass_)
            if not self._passes:
                self._stop_watch()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._open = False
        self._stop_passes(_PATIENCE_S)
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()

    def reopen(self, *, keep_workers: bool) -> None:
        if keep_workers:
            self._stop_passes(_DRAIN_S)
        else:
            self.close()
        for worker in self._workers:
            worker.slot[CANCEL] = 0.0
        with self._changed:
            self._open = True

    def abandon(self) -> None:
        if os.getpid() != self._pid:
            return  # collected in a forked child: the workers are the parent's
        # Without the lock: this may run in the middle of whatever a thread does while it holds it.
        self._open = False
        self._stop_watch()
        for pass_ in list(self._passes):
            pass_.stopped = True
        for worker in self._workers:
            worker.slot[CANCEL] = 1.0
            worker.kill()
            if worker not in self._drivers:
                worker.close()

    def _hire(self) -> None:
        alive = [worker for worker in self._workers if worker.is_alive()]
        for worker in self._workers:
            if worker not in alive:
                logger.warning("%s has ended: another one takes its place", worker.name)
                worker.close()
        if len(alive) < self._num_workers:
            self._stop_watch()  # the next one watches the new ones too
        self._workers = alive
        while len(alive) < self._num_workers:
            alive.append(self._start(len(alive)))

    def _stop_passes(self, patience_s: float) -> None:
        """Wait until all workers are idle; those that take longer are let go of."""
        with self._changed:
            for pass_ in self._passes:
                pass_.stopped = True
            self._passes.clear()
            self._stop_watch()
            drivers = dict(self._drivers)
            for worker in drivers:
                worker.slot[CANCEL] = 1.0
            self._changed.notify_all()
        deadline = time.monotonic() + patience_s
        for driver in drivers.values():
            driver.join(max(0.0, deadline - time.monotonic()))
        for worker, driver in drivers.items():
            if driver.is_alive():
                worker.kill()
                driver.join(_PATIENCE_S)
                self._workers.remove(worker)
                worker.close()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _drive(self, worker: Worker) -> None:
        sent: deque[tuple[Pass, int]] = deque()  # in work, the oldest first
        try:
            while True:
                while len(sent) < worker.ahead and (task := self._take(worker, wait=not sent)):
                    sent.append(task[:2])
                    worker.send(task[2])
                if not sent:
                    return
                outcomes = worker.receive()
                pass_, number = sent.popleft()
                pass_.put(number, outcomes)
        except BaseException as error:
            worker.kill()  # what it still brings belongs to nobody
            for pass_, number in sent:
                pass_.put(number, error)
            with self._changed:
                self._drivers.pop(worker, None)

    def _take(self, worker: Worker, *, wait: bool) -> tuple[Pass, int, Sequence[Any]] | None:
        """A chunk for a worker; with ``wait`` None only when its thread is to end."""
        with self._changed:
            while True:
                for pass_ in reversed(self._passes):
                    if (found := pass_.take()) is not None:
                        return pass_, *found
                if not wait:
                    return None
                if all(pass_.ended or pass_.stopped for pass_ in self._passes):
                    del self._drivers[worker]
                    return None
                self._changed.wait(_LOOK_S)

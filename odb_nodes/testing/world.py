"""A world of ranks in the threads of one process, with real collectives between them."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from odb_nodes.errors import PeerFailedError
from odb_nodes.protocol.transport import ExchangeStats, Int64s

T = TypeVar("T")


class InProcessTransport:
    """One rank of an ``InProcessWorld``; pass it as ``transport=``.

    Attributes:
        calls: Kinds of the collectives that this rank took part in, in order.
    """

    def __init__(self, world: "InProcessWorld", rank: int) -> None:
        self._world = world
        self.rank = rank
        self.world_size = world.size
        self.stats = ExchangeStats()
        self.calls: list[str] = []

    def all_max(self, values: list[int], what: str) -> list[int]:
        self.stats.rounds += 1
        self.stats.bytes += 8 * len(values)
        return [max(column) for column in zip(*self._exchange(values, "max", what), strict=True)]

    def all_sum(self, values: Int64s, what: str) -> Int64s:
        self.stats.bytes += values.nbytes
        total: Int64s = np.sum(self._exchange(values, f"sum{values.shape}", what), axis=0)
        return total

    def gather(self, blob: bytes, what: str) -> list[bytes]:
        self.stats.bytes += len(blob)
        return self._exchange(blob, "gather", what)

    def gather_aside(self, blob: bytes, what: str) -> list[bytes]:
        return self._world.aside.meet(self.rank, ("aside", blob), what)

    def close(self) -> None:
        return None

    def _exchange(self, value: Any, kind: str, what: str) -> list[Any]:
        self.calls.append(kind)
        started = time.monotonic()
        try:
            return self._world.meeting.meet(self.rank, (kind, value), what)
        finally:
            self.stats.wait_s += time.monotonic() - started


class InProcessWorld:
    """Runs one function per rank, each in a thread.

    Example::

        world = InProcessWorld(2)
        steps = world.run(lambda rank, transport: len(list(my_loader(rank, 2, transport))))
        assert steps[0] == steps[1]

    Args:
        size: Ranks.
        timeout_s: Longest wait in a collective, and longest run.
    """

    def __init__(self, size: int, timeout_s: float = 60.0) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self.meeting, self.aside = _Meeting(size, timeout_s), _Meeting(size, timeout_s)
        self.transports = [InProcessTransport(self, rank) for rank in range(size)]

    def run(self, work: Callable[[int, InProcessTransport], T]) -> list[T]:
        """Results of ``work(rank, transport)`` by rank.

        Raises:
            TimeoutError: A rank hangs; names it.
            BaseException: The first error of any rank.
        """
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def body(rank: int) -> None:
            try:
                results[rank] = work(rank, self.transports[rank])
            except BaseException as error:
                errors.append(error)
                self.meeting.abort()
                self.aside.abort()

        threads = [threading.Thread(target=body, args=(r,), daemon=True) for r in range(self.size)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + self.timeout_s
        for rank, thread in enumerate(threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise TimeoutError(f"rank {rank} hangs after {self.timeout_s:g} s")
        if errors:
            raise next((e for e in errors if not isinstance(e, _MeetingLeftError)), errors[0])
        return [results[rank] for rank in range(self.size)]


class _MeetingLeftError(PeerFailedError):
    """A consequence of another rank's error, not a cause."""


class _Meeting:
    """Where all ranks show each other a value: two barriers, one to show and one to have seen."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._slots: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def abort(self) -> None:
        self._barrier.abort()

    def meet(self, rank: int, shown: tuple[str, Any], what: str) -> list[Any]:
        """The values of all ranks, by rank.

        Raises:
            PeerFailedError: A rank did not come, or came for another collective.
        """
        self._slots[rank] = shown
        try:
            self._barrier.wait(self._timeout_s)
            slots = list(self._slots)
            self._barrier.wait(self._timeout_s)
        except threading.BrokenBarrierError:
            raise _MeetingLeftError(f"{what}: rank {rank} got no answer from its peers") from None
        kinds = sorted({kind for kind, _ in slots})
        if len(kinds) != 1:
            raise PeerFailedError(f"{what}: the ranks are in different collectives: {kinds}")
        return [value for _, value in slots]

"""The only module that talks to other ranks, over a gloo group that nothing else uses."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from odb_nodes.errors import PeerFailedError

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class ExchangeStats:
    """What the exchanges cost this rank: payload bytes, rounds, seconds spent waiting."""

    bytes: int = 0
    rounds: int = 0
    wait_s: float = 0.0


@runtime_checkable
class Transport(Protocol):
    """Collectives over the data-parallel ranks; all ranks call the same ones in the same order.

    A transport is used by one loader. Whatever goes wrong in a collective is a ``PeerFailedError``
    within a bounded time. ``odb_nodes.testing.check_collectives`` is what every one must pass.

    Attributes:
        rank: This rank, in ``[0, world_size)``.
        world_size: Ranks.
        stats: What the collectives have cost this rank.
    """

    rank: int
    world_size: int
    stats: ExchangeStats

    def all_max(self, values: list[int], what: str) -> list[int]:
        """Element-wise maximum over ranks; counts as a round.

        Args:
            values: As many on every rank, each in ``[-2**63, 2**63)``.
            what: Names the exchange in errors.
        """

    def all_sum(self, values: Int64s, what: str) -> Int64s:
        """Element-wise sum over ranks, of arrays of one shape."""

    def gather(self, blob: bytes, what: str) -> list[bytes]:
        """The bytes of all ranks, by rank; sizes may differ."""

    def gather_aside(self, blob: bytes, what: str) -> list[bytes]:
        """The same over a channel of its own.

        The other collectives may thus be under way in another thread.
        """

    def close(self) -> None:
        """The loader is shut down: the group may be used by another one."""


@dataclass(slots=True)
class SingleTransport:
    """A world of one: nothing to exchange."""

    rank: int = 0
    world_size: int = 1
    stats: ExchangeStats = field(default_factory=ExchangeStats)

    def all_max(self, values: list[int], what: str) -> list[int]:
        return values

    def all_sum(self, values: Int64s, what: str) -> Int64s:
        return values

    def gather(self, blob: bytes, what: str) -> list[bytes]:
        return [blob]

    def gather_aside(self, blob: bytes, what: str) -> list[bytes]:
        return [blob]

    def close(self) -> None:
        return None


class GlooTransport:
    """Collectives over a gloo process group.

    Args:
        group: A gloo group of exactly the data-parallel ranks, used by nothing else.
        timeout_s: Longest wait for the slowest rank in one collective.
    Raises:
        ValueError: This rank is not in the group, it is not a gloo group, or another loader that
            is not shut down uses it.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("this rank is not in process_group")
        backend = dist.get_backend(group)
        if "gloo" not in backend:
            raise ValueError(
                f"process_group must be of gloo, got one of {backend}: pass "
                'torch.distributed.new_group(backend="gloo")'
            )
        self.world_size = dist.get_world_size(group)
        self.stats = ExchangeStats()
        self._group = group
        self._aside: dist.ProcessGroup | None = None
        self._timeout_s = timeout_s
        _claim(group, self)

    def all_max(self, values: list[int], what: str) -> list[int]:
        tensor = torch.tensor(values, dtype=torch.int64)
        self.stats.rounds += 1
        self._reduce(tensor, dist.ReduceOp.MAX, what)
        return [int(value) for value in tensor]

    def all_sum(self, values: Int64s, what: str) -> Int64s:
        tensor = torch.from_numpy(np.ascontiguousarray(values).copy())
        self._reduce(tensor, dist.ReduceOp.SUM, what)
        return tensor.numpy()

    def gather(self, blob: bytes, what: str) -> list[bytes]:
        return self._gather(self._group, blob, what)

    def gather_aside(self, blob: bytes, what: str) -> list[bytes]:
        if self._aside is None:  # made by all ranks at their first call
            ranks = dist.get_process_group_ranks(self._group)
            made: Any = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
            self._aside = made
        assert self._aside is not None
        return self._gather(self._aside, blob, what)

    def close(self) -> None:
        _release(self._group, self)

    def _reduce(self, tensor: torch.Tensor, op: Any, what: str) -> None:
        self._run(
            lambda: dist.all_reduce(tensor, op=op, group=self._group, async_op=True),
            tensor.numel() * tensor.element_size(),
            what,
        )

    def _gather(self, group: dist.ProcessGroup, blob: bytes, what: str) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        own = torch.tensor([len(blob)])
        self._run(lambda: dist.all_gather(sizes, own, group=group, async_op=True), 8, what)
        most = max(int(size) for size in sizes)
        padded = torch.zeros(most, dtype=torch.uint8)
        if blob:
            padded[: len(blob)] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in range(self.world_size)]
        if most:
            self._run(
                lambda: dist.all_gather(found, padded, group=group, async_op=True), most, what
            )
        pairs = zip(found, sizes, strict=True)
        return [tensor[: int(size)].numpy().tobytes() for tensor, size in pairs]

    def _run(self, collective: Callable[[], Any], num_bytes: int, what: str) -> None:
        started = time.monotonic()
        try:
            work = collective()
            assert work is not None
            work.wait(timedelta(seconds=self._timeout_s))
        except (RuntimeError, ValueError) as error:
            waited = time.monotonic() - started
            first_line = (str(error).strip() or repr(error)).splitlines()[0]
            raise PeerFailedError(
                f"{what}: rank {self.rank} of {self.world_size} got no answer from its peers "
                f"after {waited:.1f} s (timeout_s={self._timeout_s:g}): {first_line}"
            ) from None
        finally:
            self.stats.bytes += num_bytes
            self.stats.wait_s += time.monotonic() - started


# Which transport uses a group, by the group's name: two on one group would take each other's
# messages, and gloo ends the process that notices.
_users: dict[str, weakref.ref[GlooTransport]] = {}
_users_lock = threading.Lock()


def _claim(group: dist.ProcessGroup, transport: GlooTransport) -> None:
    with _users_lock:
        if _in_use(group):
            gc.collect()  # a loader that was dropped lives on in a circle of references
        if _in_use(group):
            raise ValueError(
                "process_group is used by another loader, and two would take each other's "
                "messages: shut that one down first, or pass another "
                'torch.distributed.new_group(backend="gloo")'
            )
        _users[group.group_name] = weakref.ref(transport)


def _in_use(group: dist.ProcessGroup) -> bool:
    user = _users.get(group.group_name)
    transport = None if user is None else user()
    return transport is not None and transport._group is group  # names can come again


def _release(group: dist.ProcessGroup, transport: GlooTransport) -> None:
    with _users_lock:
        user = _users.get(group.group_name)
        if user is not None and user() is transport:
            del _users[group.group_name]


def make_transport(group: Any, timeout_s: float, transport: Transport | None = None) -> Transport:
    """A transport for a process group, for None (a world of one), or a transport as it is.

    Raises:
        ValueError: Both are given, or neither where ``torch.distributed`` runs several processes;
            or the group is none of gloo.
    """
    if group is not None and transport is not None:
        raise ValueError("pass either process_group or transport, got both")
    if transport is not None:
        return transport
    if group is None:
        _check_alone()
        return SingleTransport()
    if isinstance(group, dist.ProcessGroup):
        return GlooTransport(group, timeout_s)
    if isinstance(group, Transport):
        return group
    raise ValueError(
        f"process_group must be a gloo ProcessGroup, got {type(group).__name__}: pass "
        'torch.distributed.new_group(backend="gloo"), or transport= for one of your own'
    )


def _check_alone() -> None:
    """Raise ``ValueError`` if this process is one of several: each would read every sample."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    world_size = dist.get_world_size()
    if world_size > 1:
        raise ValueError(
            f"torch.distributed runs {world_size} processes and none of rank, world_size and "
            "process_group was given, so each would read every sample: pass process_group="
            'torch.distributed.new_group(backend="gloo") over the data-parallel ranks, with their '
            "rank and world_size; or world_size=1 if every process shall read all"
        )


def gather(value: Any, group: Any = None) -> list[Any]:
    """Every rank's ``value``, ordered by rank; None is the default group."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values

"""The only module that talks to other ranks, over a gloo group that nothing else uses."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from odb_nodes.errors import PeerFailedError

Int64s = npt.NDArray[np.int64]
_TEXT_BYTES = 1024


@dataclass(slots=True)
class ExchangeStats:
    """What the exchanges cost this rank: payload bytes, rounds, seconds spent waiting."""

    bytes: int = 0
    rounds: int = 0
    wait_s: float = 0.0


class Transport(Protocol):
    """Collectives over the data-parallel ranks; all ranks call the same ones in the same order."""

    rank: int
    world_size: int
    stats: ExchangeStats

    def all_max(self, values: list[int], what: str) -> list[int]:
        """Element-wise maximum over ranks."""

    def all_sum(self, values: Int64s, what: str) -> Int64s:
        """Element-wise sum over ranks."""

    def share_text(self, text: str, what: str) -> str:
        """The text of the one rank whose text is not empty, cut to 1 KiB."""


@dataclass(slots=True)
class LocalTransport:
    """A world of one: nothing to exchange."""

    rank: int = 0
    world_size: int = 1
    stats: ExchangeStats = field(default_factory=ExchangeStats)

    def all_max(self, values: list[int], what: str) -> list[int]:
        return values

    def all_sum(self, values: Int64s, what: str) -> Int64s:
        return values

    def share_text(self, text: str, what: str) -> str:
        return text


class GlooTransport:
    """Collectives over a gloo process group.

    Args:
        group: A gloo group of exactly the data-parallel ranks, used by nothing else.
        timeout_s: Longest wait for the slowest rank in one exchange, seconds.
    Raises:
        ValueError: The group is the default one or not gloo, or this rank is not in it.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        if group is dist.group.WORLD:
            raise ValueError(
                "process_group must not be the default group, which the trainer uses: pass "
                'torch.distributed.new_group(backend="gloo")'
            )
        backend = dist.get_backend(group)
        if backend != "gloo":
            raise ValueError(f"process_group must be a gloo group, got {backend!r}")
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this rank is not in process_group")
        self.stats = ExchangeStats()
        self._group = group
        self._timeout_s = timeout_s

    def all_max(self, values: list[int], what: str) -> list[int]:
        tensor = torch.tensor(values, dtype=torch.int64)
        self.stats.rounds += 1
        self._reduce(tensor, dist.ReduceOp.MAX, what)
        return [int(value) for value in tensor]

    def all_sum(self, values: Int64s, what: str) -> Int64s:
        tensor = torch.from_numpy(np.ascontiguousarray(values).copy())
        self._reduce(tensor, dist.ReduceOp.SUM, what)
        return tensor.numpy()

    def share_text(self, text: str, what: str) -> str:
        tensor = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        raw = text.encode(errors="replace")[:_TEXT_BYTES]
        if raw:
            tensor[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        self._reduce(tensor, dist.ReduceOp.MAX, what)
        return bytes(tensor.numpy()).rstrip(b"\0").decode(errors="replace")

    def _reduce(self, tensor: torch.Tensor, op: Any, what: str) -> None:
        started = time.monotonic()
        try:
            work = dist.all_reduce(tensor, op=op, group=self._group, async_op=True)
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
            self.stats.bytes += tensor.numel() * tensor.element_size()
            self.stats.wait_s += time.monotonic() - started


def make_transport(group: Any, timeout_s: float) -> Transport:
    """A transport for a process group, for None (a world of one), or a transport as it is."""
    if timeout_s <= 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s}")
    if group is None:
        return LocalTransport()
    if isinstance(group, dist.ProcessGroup):
        return GlooTransport(group, timeout_s)
    if hasattr(group, "all_max") and hasattr(group, "all_sum"):
        transport: Transport = group
        return transport
    raise ValueError(f"process_group must be a gloo ProcessGroup, got {type(group).__name__}")


def gather(value: Any, group: Any = None) -> list[Any]:
    """Every rank's ``value``, ordered by rank; None is the default group."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values

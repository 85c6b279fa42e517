"""Gloo groups over exactly the ranks that share one pass over the data."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from titan_integration.errors import UserError

T = TypeVar("T")
_groups: dict[tuple[str, int], dist.ProcessGroup] = {}


def data_group(purpose: str, dp_rank: int, dp_world_size: int) -> dist.ProcessGroup | None:
    """The calling rank's data-parallel group of its own for ``purpose``; None in a world of one.

    Ranks that load the same data (tensor-parallel peers) have the same ``dp_rank``; the k-th of
    them, in global order, form the k-th group. A group is made once a process and kept, since a
    validator rebuilds its loader every time. All ranks of the world must call this alike.
    """
    if dp_world_size == 1:
        return None
    key = (purpose, dp_world_size)
    if key not in _groups:
        _groups[key] = _new_group(dp_rank, dp_world_size)
    return _groups[key]


def _new_group(dp_rank: int, dp_world_size: int) -> dist.ProcessGroup:
    dp_ranks: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(dp_ranks, dp_rank)
    peers = [[r for r, d in enumerate(dp_ranks) if d == dp] for dp in range(dp_world_size)]
    mine: dist.ProcessGroup | None = None
    for slice_ranks in zip(*peers, strict=True):
        group = dist.new_group(list(slice_ranks), backend="gloo")
        if isinstance(group, dist.ProcessGroup):  # not where this rank is no member
            mine = group
    assert mine is not None
    return mine


def gather(value: object, group: dist.ProcessGroup | None) -> list[object]:
    """Every rank's ``value``, by data-parallel rank."""
    if group is None:
        return [value]
    values: list[object] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def run_group(timeout_s: float) -> dist.ProcessGroup | None:
    """A gloo group over all ranks for what concerns the run as a whole; None in a world of one.

    All ranks must call this alike; it is made once per process.
    """
    if dist.get_world_size() == 1:
        return None
    key = ("run", dist.get_world_size())
    if key not in _groups:
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        assert isinstance(group, dist.ProcessGroup)
        _groups[key] = group
    return _groups[key]


def all_max(values: Sequence[int], group: dist.ProcessGroup | None) -> list[int]:
    """The largest of all ranks' values, one by one."""
    if group is None:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    return [int(value) for value in tensor]


def on_rank_zero(work: Callable[[], T], group: dist.ProcessGroup | None) -> T:
    """Do the work on rank 0 only; returns its result, or raises its UserError, on all ranks."""
    outcome: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except (UserError, OSError) as error:
            outcome[0] = error
    if group is not None:
        dist.broadcast_object_list(outcome, src=0, group=group)
    if isinstance(outcome[0], (UserError, OSError)):
        raise outcome[0]
    result: T = outcome[0]
    return result

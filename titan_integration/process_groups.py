"""Gloo groups over exactly the ranks that share one pass over the data."""

import torch.distributed as dist

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

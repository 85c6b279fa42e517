"""A state for another number of ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from odb_nodes.errors import StateError
from odb_nodes.state.counters import Counters
from odb_nodes.state.cursor import NO_PACKED, ViewCursor, reshard_cursors
from odb_nodes.state.description import (
    align_state,
    check_complete,
    copy_plain,
    count_drops,
    done_digest,
    drop_logs,
    held_positions,
    replace_align_state,
    view_part,
)
from odb_nodes.state.drops import DropLog
from odb_nodes.state.schema import AlignState, WindowState

_MASK = (1 << 64) - 1
_MOST_LISTED = 1 << 26  # positions that a change of world size may list: half a GiB


def reshard_states(states: Sequence[Any], world_size: int) -> list[Any]:
    """Turn the states of all old ranks into states for another number of ranks.

    What the old ranks had not delivered is dealt out to the new ones, each sample exactly once.
    Deterministic, compact, and repeatable within an epoch.

    Args:
        states: One per old rank, in any order; of an ``AlignNode`` or a whole pipeline around it.
        world_size: New number of data-parallel ranks.
    Returns:
        One state per new rank, ordered by rank, in the shape of ``states[0]``.
    Raises:
        ValueError: ``world_size`` below 1.
        StateError: States are missing, mixed, damaged, or of a source that cannot rebuild.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    if not states:
        raise StateError("reshard_states needs the states of all ranks, got none")
    olds = sorted((align_state(state) for state in states), key=lambda state: state["rank"])
    check_complete(olds)
    cursors = [view_part(state)[0] for state in olds]
    first = cursors[0]
    listed = sum(len(cursor.leftovers) for cursor in cursors)
    rows = [max(0, cursor.taken - len(cursor.leftovers)) for cursor in cursors]
    if (max(rows) - min(rows)) * len(rows) + listed > _MOST_LISTED:
        raise StateError(f"the ranks' views are implausibly far apart: {rows} rows taken")
    held = np.concatenate([held_positions(state, first.num_samples) for state in olds])
    dealt = reshard_cursors(cursors, held, world_size)
    _check_count(olds, dealt)
    news = [_new_state(olds, cursor) for cursor in dealt]
    return [replace_align_state(copy_plain(states[0]), new) for new in news]


def _check_count(olds: list[AlignState], dealt: list[ViewCursor]) -> None:
    left = sum(cursor.size for cursor in dealt)
    done = sum(Counters.from_state(state["counters"]).emitted for state in olds)
    done += sum(sum(count_drops(state).values()) for state in olds)
    if done + left != dealt[0].num_samples:
        raise StateError(
            f"{done} samples done and {left} left do not make the epoch of {dealt[0].num_samples}"
        )


def _new_state(olds: list[AlignState], cursor: ViewCursor) -> AlignState:
    """The state of one new rank; rank 0 carries the sums of what all did before."""
    first, is_first = olds[0], cursor.rank == 0
    sums = Counters()
    logs = [DropLog(), DropLog()]
    overlong = 0
    for old in olds if is_first else []:
        counters = Counters.from_state(old["counters"])
        for name in _SUMMED:
            setattr(sums, name, getattr(sums, name) + getattr(counters, name))
        sums.before_digest = (sums.before_digest + done_digest(old)) & _MASK
        overlong += old["source"]["overlong"]
        for log, more in zip(logs, drop_logs(old), strict=True):
            log.details.extend(more.details)
            for reason, count in more.counts.items():
                log.counts[reason] = log.counts.get(reason, 0) + count
    common = Counters.from_state(first["counters"])
    for name in ("steps", "rounds", "total_emitted", "total_tokens", "total_cost"):
        setattr(sums, name, getattr(common, name))
    mapper = view_part(first)[1]
    view = {**mapper["view"], "cursor": cursor.to_state()}
    source: WindowState = {
        "source": {**mapper, "view": view, "drops": logs[1].to_state()},
        "held": NO_PACKED,
        "drops": logs[0].to_state(),
        "held_tokens": 0,
        "held_loss_tokens": 0,
        "arrived": 0,
        "arrived_digest": 0,
        "overlong": overlong,
        "exhausted": False,
        "filler": None,
        "filler_length": 0,
    }
    return {
        **first,
        "settings": copy_plain(first["settings"]),
        "rank": cursor.rank,
        "world_size": cursor.world_size,
        "counters": sums.to_state(),
        "pending": {"refs": NO_PACKED, "sizes": [], "totals": [], "own": []},
        "ended": False,
        "source": source,
    }


_SUMMED = (
    "idle_steps",
    "emitted",
    "num_tokens",
    "num_loss_tokens",
    "padded_tokens",
    "splits",
    "recirculated",
)

"""States as plain values: their parts, and what a person wants to know of them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import Any

import numpy as np

from odb_nodes.errors import StateError
from odb_nodes.state.counters import Counters
from odb_nodes.state.cursor import (
    NO_PACKED,
    Positions,
    ViewCursor,
    digest,
    digest_range,
    join_packed,
    remaining,
    unpack_positions,
)
from odb_nodes.state.drops import DropLog
from odb_nodes.state.schema import (
    AlignState,
    MapperState,
    OrderSettings,
    State,
    check_state,
)

_MASK = (1 << 64) - 1
_ATOMS = {bytes, int, str}


def copy_plain(value: Any, depth: int = 256) -> Any:
    """A copy of a plain value that shares nothing mutable with it.

    Raises:
        StateError: It is nested deeper than ``depth``, or in itself.
    """
    if depth == 0:
        raise StateError("a state is nested too deep")
    if isinstance(value, dict):
        return {key: copy_plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        if set(map(type, value)) <= _ATOMS:  # thousands of samples: copied in one go
            return value[:]
        return [
            copy_plain(item, depth - 1) if isinstance(item, dict | list) else item for item in value
        ]
    return value


def pending_to_window(state: AlignState) -> AlignState:
    """The same state with its pending steps back in the window, as the oldest samples there."""
    state = copy_plain(state)
    refs: Any = state["pending"]["refs"]
    held: Any = state["source"]["held"]
    by_position = isinstance(refs, bytes)
    state["source"]["held"] = join_packed(refs, held) if by_position else refs + held
    own, window = state["pending"]["own"], state["source"]
    tokens, loss_tokens = window["held_tokens"], window["held_loss_tokens"]
    if own is None or tokens is None or loss_tokens is None:
        window["held_tokens"] = window["held_loss_tokens"] = None
    else:
        window["held_tokens"] = tokens + sum(own[::2])
        window["held_loss_tokens"] = loss_tokens + sum(own[1::2])
    state["pending"] = {
        "refs": NO_PACKED if by_position else [],
        "sizes": [],
        "totals": [],
        "own": [],
    }
    return state


def state_for_rank(
    state: Any, settings: OrderSettings, *, rank: int, world_size: int
) -> AlignState:
    """A copy of an ``AlignNode`` state that a rank with these settings can go on from.

    Under other settings than the state was saved with, the pending steps go back to the window.

    Args:
        state: Of whatever origin; it stays as it is.
        settings: What the order of the steps depends on.
        rank: That loads it.
        world_size: That loads it.
    Raises:
        StateError: The state is damaged, or of another rank or world size.
    """
    fitting = check_state(copy_plain(state))
    for name, saved, here in (
        ("world_size", fitting["world_size"], world_size),
        ("rank", fitting["rank"], rank),
    ):
        if saved != here:
            raise StateError(
                f"state is of {name} {saved}, this run has {here}: give each rank its own state, "
                "after reshard_states for another world size (a distributed checkpoint keeps one "
                "state per key: save under a key per rank, or the states of all ranks packed)"
            )
    return fitting if fitting["settings"] == settings else pending_to_window(fitting)


def find_align_state(state: Any) -> State:
    """The ``AlignNode`` state inside the state of a whole pipeline, as it is.

    Raises:
        StateError: There is none.
    """
    for inner in _path(state):
        if _is_align_state(inner):
            return inner
    raise StateError("no state of an AlignNode here: was this saved by an ODB pipeline?")


def align_state(state: Any) -> AlignState:
    """The same, checked field by field: safe to read whoever wrote it.

    Raises:
        StateError: There is none, or it is damaged.
    """
    return check_state(find_align_state(state))


def replace_align_state(state: Any, new: AlignState) -> Any:
    """The state of a whole pipeline with another ``AlignNode`` state in it."""
    whole: Any = new
    around = takewhile(lambda inner: not _is_align_state(inner), _path(state))
    for inner in reversed(list(around)):
        key = next(key for key in _NESTED if isinstance(inner.get(key), dict))
        whole = {**inner, key: whole}
    return whole


def _path(state: Any) -> Iterator[State]:
    """The states of the nodes of a pipeline, outermost first."""
    for _ in range(_DEEPEST):
        if not isinstance(state, dict):
            return
        yield state
        state = next((state[key] for key in _NESTED if isinstance(state.get(key), dict)), None)


def _is_align_state(state: State) -> bool:
    return "version" in state and "pending" in state


_DEEPEST = 100
_NESTED = ("root", "snapshot", "it_state", "source")  # where torchdata's nodes put their source's


def view_part(state: AlignState) -> tuple[ViewCursor, MapperState]:
    """The view cursor of an ``AlignNode`` state, and the mapper state that holds it."""
    mapper: MapperState = state["source"]["source"]
    if not isinstance(state["source"]["held"], bytes):
        raise StateError(
            "this state is of a source that cannot rebuild samples (no SampleMapper): it can only "
            "be loaded by the rank and world size that saved it"
        )
    return ViewCursor.from_state(mapper["view"]["cursor"]), mapper


def held_positions(state: AlignState, num_samples: int) -> Positions:
    """Positions taken from the view but not delivered: held and pending."""
    held = unpack_positions(state["source"]["held"], num_samples, "state 'held'")
    pending = unpack_positions(state["pending"]["refs"], num_samples, "state 'pending'")
    return np.concatenate([held, pending])


def check_complete(olds: list[AlignState]) -> None:
    """Raise ``StateError`` unless these are the states of all ranks, by rank, at one moment."""
    ranks = [state["rank"] for state in olds]
    world = olds[0]["world_size"]
    if len(olds) != world or ranks != list(range(world)):
        raise StateError(f"need the states of ranks 0 to {world - 1}, each once, got {ranks}")
    for name, read in (
        ("world_size", lambda s: s["world_size"]),
        ("epoch", lambda s: s["epoch"]),
        ("settings", lambda s: s["settings"]),
        ("quota_done", lambda s: s["quota_done"]),
        ("steps", lambda s: Counters.from_state(s["counters"]).steps),
        ("dataset length", lambda s: view_part(s)[0].num_samples),
        ("first strided position", lambda s: view_part(s)[0].tail_start),
        ("seed", lambda s: view_part(s)[1]["view"]["seed"]),
        ("shuffle", lambda s: view_part(s)[1]["view"]["shuffle"]),
    ):
        values = [read(state) for state in olds]
        if any(value != values[0] for value in values):
            raise StateError(f"the states are not of one moment: {name} is {values} by rank")


def drop_logs(state: AlignState) -> list[DropLog]:
    """The drop logs of the window and, if it can rebuild samples, of its source."""
    source = state["source"]
    logs = [source["drops"]]
    if isinstance(source["held"], bytes):
        logs.append(source["source"]["drops"])
    return [DropLog.from_state(log) for log in logs]


def count_drops(state: AlignState) -> dict[str, int]:
    """Dropped samples by reason."""
    counts: dict[str, int] = {}
    for log in drop_logs(state):
        for reason, count in log.counts.items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def done_digest(state: AlignState) -> int:
    """Digest of the positions emitted or dropped so far."""
    counters = Counters.from_state(state["counters"])
    dropped = sum(log.digest for log in drop_logs(state))
    return (counters.digest + counters.before_digest + dropped) & _MASK


def describe_state(state: Any) -> dict[str, Any]:
    """What a person wants to know of a rank's state.

    Returns:
        ``version, rank, world_size, epoch``, ``ended`` (the pass is over),
        ``num_samples`` (of the epoch, all ranks),
        ``held`` and ``pending`` (samples), ``remaining`` (samples of this rank neither delivered
        nor dropped), ``dropped`` (by reason), ``settings``, and all of ``Counters``. For a source
        that cannot rebuild, ``num_samples`` and ``remaining`` are None: a stream has no end.
    Raises:
        StateError: Not a state of ours.
    """
    state = align_state(state)
    pending = sum(state["pending"]["sizes"])
    held = state["source"]["held"]
    num_held = len(held) // 8 if isinstance(held, bytes) else len(held)
    num_samples = left = None
    if isinstance(held, bytes):
        cursor = view_part(state)[0]
        num_samples = cursor.num_samples
        left = cursor.size - cursor.taken + num_held + pending
    return {
        "version": state["version"],
        "rank": state["rank"],
        "world_size": state["world_size"],
        "epoch": state["epoch"],
        "ended": state["ended"],
        "num_samples": num_samples,
        "held": num_held,
        "pending": pending,
        "remaining": left,
        "dropped": count_drops(state),
        "settings": copy_plain(state["settings"]),
        **asdict(Counters.from_state(state["counters"])),
    }


def verify_states(states: Sequence[Any], num_samples: int | None = None) -> str:
    """Check that what all ranks did and what they have left is the epoch, each position once.

    Walks the epoch once: seconds per billion samples, in constant memory.

    Args:
        states: One per rank, in any order.
        num_samples: Length that the dataset should have; None trusts the states.
    Returns:
        "exact", or what is wrong.
    Raises:
        StateError: States are missing, mixed or damaged.
    """
    olds = sorted((align_state(state) for state in states), key=lambda state: state["rank"])
    check_complete(olds)
    cursors = [view_part(state)[0] for state in olds]
    length = cursors[0].num_samples
    if num_samples not in (None, length):
        return f"the states are of a dataset of {length} samples, not of {num_samples}"
    total, count = 0, sum(cursor.size - cursor.taken for cursor in cursors)
    for state in olds:
        held = held_positions(state, length)
        total += done_digest(state) + digest(held)
        count += Counters.from_state(state["counters"]).emitted + len(held)
        count += sum(count_drops(state).values())
    if count != length:
        return f"{count} positions are done or left, the epoch has {length}"
    total += sum(map(digest, remaining(cursors)))
    if total & _MASK != digest_range(0, length):
        return "some position is lost and another is there twice"
    return "exact"

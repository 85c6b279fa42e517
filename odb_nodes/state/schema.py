"""Every field of a state, checked before anything is changed. Nothing here runs what it reads.

The TypedDicts are the format: their keys, no more and no less, are what a state must have. It is
the same structure at every moment, so that checkpoint libraries which load into a structure
(``torch.distributed.checkpoint``) lose nothing of it. States of version 1 are read as well.
"""

from typing import Any, NotRequired, TypedDict, cast

from odb_nodes.errors import StateError
from odb_nodes.state.checks import read_count, read_optional_text, shorten
from odb_nodes.state.counters import Counters
from odb_nodes.state.cursor import ViewCursor, unpack_positions
from odb_nodes.state.drops import DropLog
from odb_nodes.state.upgrade import VERSION, upgraded

State = dict[str, Any]
Refs = bytes | list[bytes]  # samples: packed positions, 8 bytes each, or packed contents
_NO_BOUND = 1 << 62  # positions of a stream have no end


class OrderSettings(TypedDict):
    """What the order of the steps depends on."""

    budget: str
    window: int
    policy: str
    steps_per_round: int | None


class PendingState(TypedDict):
    """The steps of an agreed round that are not delivered yet.

    ``totals`` are samples, tokens and loss tokens of every step over all ranks, flat; where costs
    are exchanged, each step's cost and the highest of a rank follow them. ``own`` are the tokens
    and loss tokens of this rank, flat, or None where a state of version 1 had none.
    """

    refs: Refs
    sizes: list[int]
    totals: list[int]
    own: list[int] | None


class ViewState(TypedDict):
    """Of a ``SamplerView``."""

    cursor: dict[str, Any]
    shuffle: bool
    seed: int
    dataset_id: str | None


class MapperState(TypedDict):
    """Of a ``SampleMapper``."""

    view: ViewState
    drops: dict[str, Any]
    rng_seed: NotRequired[int | None]  # absent from version 1, which did not say


class StreamState(TypedDict):
    """Of a ``StreamView``.

    ``iterable`` is a packed state that the iterable itself gave, or None where the stream is read
    again from its start; ``since`` are the items that came after that state.
    """

    epoch: int
    num_yielded: int
    exhausted: bool
    iterable: bytes | None
    since: int
    dataset_id: str | None


class WindowState(TypedDict):
    """Of a ``GroupingNode``.

    ``source`` is a ``MapperState`` where samples are held as positions, else the state of whatever
    node is there, packed (as it is in version 1). ``held_tokens`` and ``held_loss_tokens`` are sums
    over the held samples, None where a state of version 1 had none. ``exhausted`` says that a
    source of other nodes had ended; a view knows by itself.
    """

    source: Any
    held: Refs
    held_tokens: int | None
    held_loss_tokens: int | None
    drops: dict[str, Any]
    arrived: int
    arrived_digest: int
    overlong: int
    exhausted: bool
    filler: Refs | None
    filler_length: int


class AlignState(TypedDict):
    """Of an ``AlignNode``: the state of a rank. ``ended`` says that the pass is over."""

    version: int
    settings: OrderSettings
    rank: int
    world_size: int
    epoch: int
    counters: dict[str, int]
    quota_done: int
    pending: PendingState
    ended: bool
    source: WindowState


def check_state(state: Any) -> AlignState:
    """Check a whole state of ``AlignNode``, of this version or an older one.

    Returns:
        ``state`` itself, or what a state of this version would say instead of an older one.
    Raises:
        StateError: A field is missing, unknown, of another type, or contradicts another one.
    """
    known = upgraded(_record(state, "state", {"version"}, more=True))
    _record(known, "state", AlignState)
    _check_settings(known["settings"])
    for name in ("rank", "world_size", "epoch", "quota_done"):
        read_count(known, name, "state")
    _check_kind(known, "ended", bool, "state")
    if known["rank"] >= known["world_size"]:
        raise StateError(f"rank {known['rank']} is outside world size {known['world_size']}")
    counters = Counters.from_state(known["counters"])
    window = check_window_state(known["source"])
    num_pending = _check_pending(known["pending"], window)
    if isinstance(window["held"], bytes):
        _check_place(known, view_cursor(window["source"]))
    else:
        _check_arrivals(window, counters.emitted + num_pending + len(window["held"]))
    return cast(AlignState, known)


def check_window_state(state: Any) -> WindowState:
    """The same for the state of a ``GroupingNode`` on its own.

    ``source`` is only looked at if samples are held as positions; else it is whatever the source
    makes of it.
    """
    known = _record(state, "window state", WindowState)
    DropLog.from_state(known["drops"])
    for name in ("arrived", "overlong", "filler_length"):
        read_count(known, name, "window state")
    read_count(known, "arrived_digest", "window state", below=1 << 64)
    for name in ("held_tokens", "held_loss_tokens"):
        if known[name] is not None:
            read_count(known, name, "window state")
    _check_kind(known, "exhausted", bool, "window state")
    by_position = isinstance(known["held"], bytes)
    bound = view_cursor(known["source"]).num_samples if by_position else _NO_BOUND
    count_refs(known["held"], bound, "state 'held'")
    filler = known["filler"]
    if filler is not None and count_refs(filler, bound, "state 'filler'") != 1:
        raise StateError("state 'filler' must be one sample or None")
    if filler is not None and type(filler) is not type(known["held"]):
        raise StateError("state 'held' and 'filler' are not of one kind")
    return cast(WindowState, known)


def check_mapper_state(state: Any) -> MapperState:
    """The same for the state of a ``SampleMapper``."""
    names = set(MapperState.__annotations__)
    if isinstance(state, dict) and "rng_seed" not in state:
        names.remove("rng_seed")
    known = _record(state, "mapper state", names)
    if known.get("rng_seed") is not None:
        read_count(known, "rng_seed", "mapper state")
    DropLog.from_state(known["drops"])
    check_view_state(known["view"])
    return cast(MapperState, known)


def check_view_state(state: Any) -> ViewState:
    """The same for the state of a ``SamplerView``."""
    known = _record(state, "view state", ViewState)
    ViewCursor.from_state(known["cursor"])
    _check_kind(known, "shuffle", bool, "view state")
    _check_kind(known, "seed", int, "view state")
    read_optional_text(known, "dataset_id", "view state")
    return cast(ViewState, known)


def check_stream_state(state: Any) -> StreamState:
    """The same for the state of a ``StreamView``; version 1 had no ``since`` and no identity."""
    if isinstance(state, dict) and "since" not in state:
        state = {**state, "since": 0, "dataset_id": None}
    known = _record(state, "stream state", StreamState)
    for name in ("epoch", "num_yielded", "since"):
        read_count(known, name, "stream state")
    _check_kind(known, "exhausted", bool, "stream state")
    if known["iterable"] is not None:
        _check_kind(known, "iterable", bytes, "stream state")
    read_optional_text(known, "dataset_id", "stream state")
    if known["since"] > known["num_yielded"]:
        raise StateError("stream state counts more items since a state than items in all")
    return cast(StreamState, known)


def view_cursor(mapper: Any) -> ViewCursor:
    """The view cursor in the state of a ``SampleMapper``."""
    return ViewCursor.from_state(check_mapper_state(mapper)["view"]["cursor"])


def count_refs(refs: Any, num_samples: int, what: str) -> int:
    """Samples that the references of a state name: packed positions, or a list of contents."""
    if not isinstance(refs, list):
        return len(unpack_positions(refs, num_samples, what))
    if not all(isinstance(blob, bytes) for blob in refs):
        raise StateError(f"{what} must hold packed samples as bytes")
    return len(refs)


def _check_settings(settings: Any) -> None:
    settings = _record(settings, "state 'settings'", OrderSettings)
    read_count(settings, "window", "state 'settings'")
    if settings["steps_per_round"] is not None:
        read_count(settings, "steps_per_round", "state 'settings'")
    for name in ("budget", "policy"):
        _check_kind(settings, name, str, "state 'settings'")


def _check_pending(pending: Any, window: WindowState) -> int:
    """Returns the number of samples in the pending steps."""
    pending = _record(pending, "state 'pending'", PendingState)
    if type(pending["refs"]) is not type(window["held"]):
        raise StateError("state 'held' and 'pending' are not of one kind")
    by_position = isinstance(pending["refs"], bytes)
    bound = view_cursor(window["source"]).num_samples if by_position else _NO_BOUND
    count = count_refs(pending["refs"], bound, "state 'pending'")
    for name in ("sizes", "totals", *(() if pending["own"] is None else ("own",))):
        _check_counts(pending[name], f"state 'pending' {name!r}")
    sizes, totals = pending["sizes"], pending["totals"]
    if sum(sizes) != count or len(totals) not in (3 * len(sizes), 5 * len(sizes)):
        raise StateError(
            f"state 'pending' has {count} samples and {len(totals)} totals for {len(sizes)} steps "
            f"of {sum(sizes)} samples"
        )
    if pending["own"] is not None and len(pending["own"]) != 2 * len(sizes):
        raise StateError(
            f"state 'pending' has {len(pending['own'])} own totals for {len(sizes)} steps"
        )
    return count


def _check_place(state: State, cursor: ViewCursor) -> None:
    for name in ("rank", "world_size", "epoch"):
        if getattr(cursor, name) != state[name]:
            raise StateError(
                f"state has {name} {state[name]}, its view has {getattr(cursor, name)}"
            )


def _check_arrivals(window: WindowState, accounted: int) -> None:
    """All samples of a stream that arrived were delivered, dropped, or are still here."""
    accounted += DropLog.from_state(window["drops"]).total
    if window["arrived"] != accounted:
        raise StateError(
            f"state says that {window['arrived']} samples arrived, and accounts for {accounted}"
        )


def _check_counts(values: Any, what: str) -> None:
    if not isinstance(values, list):
        raise StateError(f"{what} must be a list")
    for value in values:
        read_count({"item": value}, "item", what)


def _check_kind(state: State, name: str, kind: type, what: str) -> None:
    if type(state[name]) is not kind:
        raise StateError(f"{what} {name!r} must be {kind.__name__}, got {shorten(state[name])}")


def _record(value: Any, what: str, keys: set[str] | type, *, more: bool = False) -> State:
    names = keys if isinstance(keys, set) else set(keys.__annotations__)
    if not isinstance(value, dict):
        raise StateError(f"{what} must be a dict, got {type(value).__name__}")
    if not names <= set(value) or not (more or len(value) == len(names)):
        raise StateError(f"{what} must have the keys {sorted(names)}, got {shorten(value)}")
    return value


__all__ = ["VERSION", "AlignState", "MapperState", "PendingState", "ViewState", "WindowState"]

"""Every field of a state, checked before anything is changed. Nothing here runs what it reads."""

from typing import Any

from odb_nodes.errors import StateError
from odb_nodes.state.checks import read_count, shorten
from odb_nodes.state.counters import Counters
from odb_nodes.state.cursor import ViewCursor, unpack_positions
from odb_nodes.state.drops import DropLog

VERSION = 1
State = dict[str, Any]
_NO_BOUND = 1 << 62  # positions of a stream have no end


def check_state(state: Any) -> State:
    """Check a whole state of ``AlignNode``.

    Returns:
        ``state`` itself.
    Raises:
        StateError: A field is missing, unknown, of another type, or contradicts another one.
    """
    known: State = _record(state, "state", {"version"}, more=True)
    if known["version"] != VERSION or isinstance(known["version"], bool):
        raise StateError(f"state version {shorten(known['version'])} is not {VERSION}")
    _record(known, "state", _STATE_KEYS)
    _check_settings(known["settings"])
    for name in ("rank", "world_size", "epoch", "quota_done"):
        read_count(known, name, "state")
    if known["rank"] >= known["world_size"]:
        raise StateError(f"rank {known['rank']} is outside world size {known['world_size']}")
    Counters.from_state(known["counters"])
    check_window_state(known["source"])
    _check_pending(known["pending"], known["source"])
    if isinstance(known["source"]["held"], bytes):
        cursor = view_cursor(known["source"]["source"])
        for name in ("rank", "world_size", "epoch"):
            if getattr(cursor, name) != known[name]:
                raise StateError(
                    f"state has {name} {known[name]}, its view has {getattr(cursor, name)}"
                )
    return known


def check_window_state(state: Any) -> State:
    """The same for the state of a ``GroupingNode`` on its own; ``source`` is only looked at if
    samples are held as positions, else it is whatever the source makes of it."""
    known: State = _record(state, "window state", _WINDOW_KEYS)
    DropLog.from_state(known["drops"])
    for name in ("arrived", "overlong", "filler_length"):
        read_count(known, name, "window state")
    by_position = isinstance(known["held"], bytes)
    bound = view_cursor(known["source"]).num_samples if by_position else _NO_BOUND
    count_refs(known["held"], bound, "state 'held'")
    filler = known["filler"]
    if filler is not None and count_refs(filler, bound, "state 'filler'") != 1:
        raise StateError("state 'filler' must be one sample or None")
    if filler is not None and type(filler) is not type(known["held"]):
        raise StateError("state 'held' and 'filler' are not of one kind")
    return known


def check_mapper_state(state: Any) -> State:
    """The same for the state of a ``SampleMapper``."""
    known: State = _record(state, "mapper state", {"view", "drops"})
    DropLog.from_state(known["drops"])
    check_view_state(known["view"])
    return known


def check_view_state(state: Any) -> State:
    """The same for the state of a ``SamplerView``."""
    known: State = _record(state, "view state", {"cursor", "shuffle", "seed"})
    ViewCursor.from_state(known["cursor"])
    for name, kind in (("shuffle", bool), ("seed", int)):
        if type(known[name]) is not kind:
            raise StateError(
                f"view state {name!r} must be {kind.__name__}, got {shorten(known[name])}"
            )
    return known


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
    settings = _record(settings, "state 'settings'", _SETTINGS_KEYS)
    read_count(settings, "window", "state 'settings'")
    if settings["steps_per_round"] is not None:
        read_count(settings, "steps_per_round", "state 'settings'")
    for name in ("budget", "policy"):
        if not isinstance(settings[name], str):
            raise StateError(f"state 'settings' {name!r} must be text")


def _check_pending(pending: Any, window: State) -> None:
    pending = _record(pending, "state 'pending'", {"refs", "sizes", "totals"})
    if type(pending["refs"]) is not type(window["held"]):
        raise StateError("state 'held' and 'pending' are not of one kind")
    by_position = isinstance(pending["refs"], bytes)
    bound = view_cursor(window["source"]).num_samples if by_position else _NO_BOUND
    count = count_refs(pending["refs"], bound, "state 'pending'")
    for name in ("sizes", "totals"):
        if not isinstance(pending[name], list):
            raise StateError(f"state 'pending' {name!r} must be a list")
        for item in pending[name]:
            read_count({name: item}, name, "state 'pending'")
    sizes, totals = pending["sizes"], pending["totals"]
    if sum(sizes) != count or len(totals) not in (3 * len(sizes), 5 * len(sizes)):
        raise StateError(
            f"state 'pending' has {count} samples and {len(totals)} totals for {len(sizes)} steps "
            f"of {sum(sizes)} samples"
        )


def _record(value: Any, what: str, keys: set[str], *, more: bool = False) -> State:
    if not isinstance(value, dict):
        raise StateError(f"{what} must be a dict, got {type(value).__name__}")
    if not keys <= set(value) or not (more or len(value) == len(keys)):
        raise StateError(f"{what} must have the keys {sorted(keys)}, got {shorten(value)}")
    return value


_STATE_KEYS = {
    "version",
    "settings",
    "rank",
    "world_size",
    "epoch",
    "counters",
    "quota_done",
    "pending",
    "source",
}
_SETTINGS_KEYS = {"budget", "window", "policy", "steps_per_round"}
_WINDOW_KEYS = {"source", "held", "drops", "arrived", "overlong", "filler", "filler_length"}

"""States of older versions, read as what a state of this version would say instead.

Version 1 had no data identity, no sums to check rebuilt samples against, and called the policies by
other names. What it did not say is None here, and is then not checked.
"""

from typing import Any

from odb_nodes.errors import StateError
from odb_nodes.state.checks import shorten
from odb_nodes.state.cursor import digest, digest_range, unpack_positions

VERSION = 2
_POLICIES = {"carry": "sliding", "paper": "tumbling"}
_MASK = (1 << 64) - 1
_MOST_COUNTED = 1 << 32  # arrivals of a version 1 stream that are summed up: a minute at most


def upgraded(state: dict[str, Any]) -> dict[str, Any]:
    """A state of this version; itself if it is one.

    Args:
        state: With a "version"; what else is in it may be damaged.
    Raises:
        StateError: Of a version that is not known, or so damaged that it cannot be read as one.
    """
    version = state["version"]
    if isinstance(version, bool) or version not in (1, VERSION):
        raise StateError(
            f"state version {shorten(version)} is not {VERSION}: it was saved by another version "
            "of odb-nodes"
        )
    if version == VERSION:
        return state
    try:
        return _from_version_1(state)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StateError(f"a state of version 1 that is damaged: {error!r:.200}") from None


def _from_version_1(state: dict[str, Any]) -> dict[str, Any]:
    settings, window, pending = state["settings"], state["source"], state["pending"]
    policy = settings["policy"]
    window = {**window, "held_tokens": None, "held_loss_tokens": None, "exhausted": False}
    window["arrived_digest"] = _arrived_digest(state)
    if isinstance(window["held"], bytes):
        mapper = window["source"]
        view = {**mapper["view"], "dataset_id": None}
        window["source"] = {**mapper, "view": view}
    return {
        **state,
        "version": VERSION,
        "settings": {**settings, "policy": _POLICIES.get(policy, policy)},
        "pending": {**pending, "own": None},
        "ended": False,
        "source": window,
    }


def _arrived_digest(state: dict[str, Any]) -> int:
    """Of the positions that reached the window: those of a stream count up from 0."""
    window, pending = state["source"], state["pending"]
    if isinstance(window["held"], bytes):
        total: int = state["counters"]["digest"] + window["drops"]["digest"]
        for refs in (window["held"], pending["refs"]):
            total += digest(unpack_positions(refs, 1 << 62, "state"))
        return total & _MASK
    arrived = window["arrived"]
    if not 0 <= arrived <= _MOST_COUNTED:
        raise StateError(f"state says that {shorten(arrived)} samples arrived")
    return digest_range(0, arrived)

"""Reading the fields of an untrusted state, and quoting them in messages."""

from typing import Any

from odb_nodes.errors import StateError


def shorten(value: Any) -> str:
    """A value for a message: short, whatever it is and however large."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict):
        return "a dict of " + ", ".join(map(shorten, list(value)[:20]))
    plain = value is None or isinstance(value, int | float | str | bytes)
    return f"{value!r:.60}" if plain else type(value).__name__


def read_count(state: dict[str, Any], name: str, what: str, below: int = 1 << 62) -> int:
    """A field that must be a number in ``[0, below)``, so that sums of a few fit into 64 bits.

    Raises:
        StateError: It is missing, of another type, or out of range.
    """
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
        raise StateError(
            f"{what} {name!r} must be an integer in [0, {below}), got {shorten(value)}"
        )
    return value


def read_optional_text(state: dict[str, Any], name: str, what: str) -> str | None:
    """A field that must be text or None.

    Raises:
        StateError: It is something else.
    """
    value = state.get(name)
    if value is not None and not isinstance(value, str):
        raise StateError(f"{what} {name!r} must be text or None, got {shorten(value)}")
    return value

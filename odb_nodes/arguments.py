"""Checks of arguments at construction: the rule, what was given, and plain values out of them."""

import operator
from collections.abc import Sequence
from typing import Any

_MOST = 1 << 62  # of a count in a state


def as_count(name: str, value: Any, *, least: int = 0) -> int:
    """An integer of at least ``least`` as an int, whatever integer type it came as.

    Raises:
        ValueError: It is something else, a boolean or a float with an integral value included, or
            more than a state can hold.
    """
    try:
        number = least - 1 if _is_flag(value) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if number >= _MOST:
        raise ValueError(f"{name} must be an integer in [{least}, {_MOST}), got {value!r}")
    return number


def as_seconds(name: str, value: Any) -> float:
    """A positive number as a float; infinity is one.

    Raises:
        ValueError: It is something else.
    """
    try:
        text = isinstance(value, str | bytes) or _is_flag(value)
        number = float("nan") if text else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not number > 0:
        raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
    return number


def as_flag(name: str, value: Any) -> bool:
    """True or False as a bool, of NumPy too.

    Raises:
        ValueError: It is something else.
    """
    if not _is_flag(value):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raises:
    ValueError: The value is none of the choices.
    """
    if value not in choices:
        listed = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
        raise ValueError(f"{name} must be {listed}, got {value!r}")


def check_callable(name: str, value: Any) -> None:
    """Raises:
    ValueError: The value is neither None nor can be called.
    """
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function or None, got {type(value).__name__}")


def _is_flag(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # without importing NumPy

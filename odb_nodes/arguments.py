"""Checks of arguments at construction: the rule, what was given, and plain values out of them."""

import operator
from collections.abc import Sequence
from typing import Any


def as_count(name: str, value: Any, *, least: int = 0) -> int:
    """An integer of at least ``least`` as an int, whatever integer type it came as.

    Raises:
        ValueError: It is something else, a boolean or a float with an integral value included.
    """
    try:
        number = -1 if type(value).__name__ in ("bool", "bool_") else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or type(value).__name__ in ("bool", "bool_"):
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return number


def as_seconds(name: str, value: Any) -> float:
    """A positive number as a float; infinity is one.

    Raises:
        ValueError: It is something else.
    """
    try:
        number = float("nan") if isinstance(value, bool | str | bytes) else float(value)
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
    if type(value).__name__ not in ("bool", "bool_"):
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

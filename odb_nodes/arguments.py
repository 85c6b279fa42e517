"""Checks of arguments at construction: plain values of the right kind, or a ``ValueError``.

NumPy and PyTorch integers become ``int``: whatever is accepted here may go into a state, and a
state holds plain values only. A message says the rule, the value and, where there is one, the cure.
"""

import math
from collections.abc import Collection
from typing import Any


def integer(name: str, value: Any, *, least: int | None = None, below: int | None = None) -> int:
    """``value`` as an ``int``.

    Args:
        name: Of the argument, for the message.
        value: Anything with ``__index__``, other than a boolean.
        least: Smallest value allowed.
        below: The value must be smaller than this.
    Raises:
        ValueError: Not an integer, or out of range.
    """
    number = None if _is_boolean(value) else _index(value)
    rule = "an integer" if least is None else f"an integer of at least {least}"
    if number is None or (least is not None and number < least):
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    if below is not None and number >= below:
        raise ValueError(f"{name} must be below {below}, got {value!r}")
    return number


def optional_integer(name: str, value: Any, *, least: int) -> int | None:
    """The same, where None is allowed as well."""
    if value is None:
        return None
    try:
        return integer(name, value, least=least)
    except ValueError as error:
        raise ValueError(f"{error}; None sets no such limit") from None


def positive_number(name: str, value: Any) -> float:
    """``value`` as a finite ``float`` above zero.

    Raises:
        ValueError: Not a number, a boolean, not finite, or not above zero.
    """
    try:
        number = math.nan if _is_boolean(value) or isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return number


def boolean(name: str, value: Any) -> bool:
    """``value`` as a ``bool``; NumPy's booleans are accepted, 0 and 1 are not.

    Raises:
        ValueError: Anything else.
    """
    if not _is_boolean(value):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def choice(name: str, value: Any, options: Collection[str]) -> str:
    """``value`` if it is one of ``options``.

    Raises:
        ValueError: It is not; the message lists them.
    """
    if not isinstance(value, str) or value not in options:
        known = " or ".join(repr(option) for option in options)
        raise ValueError(f"{name} must be {known}, got {value!r}")
    return value


def function(name: str, value: Any, what: str) -> None:
    """Check that ``value`` can be called, or is None.

    Raises:
        ValueError: It cannot.
    """
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be {what}, got {type(value).__name__}")


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def _index(value: Any) -> int | None:
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        return None

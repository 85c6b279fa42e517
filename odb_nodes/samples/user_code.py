"""Calls into user code: whatever it raises is an error that says where, and never ends a pass.

``StopIteration`` and ``GeneratorExit`` mean an end elsewhere in an iterator, and extensions written
in Rust raise what is only a ``BaseException``. Out of user code all of them are errors.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from odb_nodes.errors import SampleError

T = TypeVar("T")


def call_user_code(function: Callable[..., T], *args: Any, where: str) -> T:
    """``function(*args)``, with its errors told as ones of ``where``.

    Args:
        function: The user's.
        args: Of it.
        where: What it was called for, e.g. "while collating dataset[i] for i in [3, 4]".
    Raises:
        Exception: What it raised, with ``where`` as a note.
        SampleError: Instead of what is no ``Exception``, or would end an iteration.
        KeyboardInterrupt: In the main thread, where it comes from a person.
    """
    try:
        return function(*args)
    except BaseException as error:
        raise as_error(error, where) from error.__cause__


def as_error(error: BaseException, where: str) -> BaseException:
    """What to raise for an error out of user code; see ``call_user_code``."""
    is_main = threading.current_thread() is threading.main_thread()
    if isinstance(error, KeyboardInterrupt) and is_main:
        return error
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        error.add_note(where)
        return error
    told = SampleError(f"{type(error).__name__}: {error} was raised {where}")
    told.__cause__ = error
    return told

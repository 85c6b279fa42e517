"""A row's values by their standard names, and which of its columns were read."""

from collections.abc import Mapping
from typing import Any

from titan_integration.data.formats.document import RowError

KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number"}


class Fields:
    """A row, or one of its messages, that remembers what was read of it.

    An absent column and a null one are the same: tables fill in nulls where rows differ.

    Args:
        row: The parsed value.
        columns: Standard name -> the row's own name, where they differ.
    """

    def __init__(self, row: Mapping[str, Any], columns: Mapping[str, str] | None = None) -> None:
        self.row = row
        self._columns = columns or {}
        self._read: set[str] = set()

    def has(self, name: str, *kinds: type) -> bool:
        """Whether the column is there, and of one of ``kinds`` if any are given."""
        value = self.row.get(self._columns.get(name, name))
        return value is not None and (not kinds or isinstance(value, kinds))

    def get(self, name: str) -> Any:
        """The column's value; None where it is absent."""
        column = self._columns.get(name, name)
        self._read.add(column)
        return self.row.get(column)

    def first(self, names: tuple[str, ...]) -> str | None:
        """The first of ``names`` that the row has."""
        return next((name for name in names if self.has(name)), None)

    def text(self, *names: str) -> str | None:
        """The first of these columns as text, numbers included; None where all are absent.

        Raises:
            RowError: The column holds something else.
        """
        name = self.first(names)
        if name is None:
            return None
        value = self.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        raise RowError(f"{self._columns.get(name, name)!r} is {kind_of(value)}, not text")

    def unread(self) -> frozenset[str]:
        """Columns that hold something and were not read."""
        empty: tuple[Any, ...] = (None, "", [], {})
        return frozenset(
            str(key)
            for key, value in self.row.items()
            if key not in self._read and value not in empty
        )


def kind_of(value: Any) -> str:
    """What a JSON value is, for a message."""
    return next((name for kind, name in KINDS.items() if type(value) is kind), type(value).__name__)

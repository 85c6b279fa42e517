"""What every source of rows is to the rest: a table that is read by index."""

from collections.abc import Sequence
from typing import Any, Protocol


class Table(Protocol):
    """Rows by index, in an order that is the same on every rank and in every run.

    A table is picklable, for worker processes, and safe to read from several threads.
    """

    @property
    def files(self) -> Sequence[str]:
        """Names of the files or datasets that the rows come from, as a person gave them."""
        ...

    def __len__(self) -> int:
        """Rows."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """The row as plain Python values.

        Raises:
            IndexError: ``index`` is not in ``range(len(self))``.
            UserError: The row cannot be read; names its place, the rule and the remedy.
        """
        ...

    def where(self, index: int, /) -> str:
        """The row's place for a message: ``file:line``, or the file and the row's number."""
        ...

    def fingerprint(self) -> str:
        """Digest of what the rows are read from; see ``fingerprint.fingerprint_files``.

        Cheap: no more than some megabytes of each file are read, and only once per table.
        """
        ...


def check_index(index: int, length: int) -> int:
    """``index`` itself. Raises IndexError unless it is in ``range(length)``."""
    if not 0 <= index < length:
        raise IndexError(f"row must be in [0, {length}), got {index}")
    return index

"""Rows that were appended between two processes of a run: the next epoch has them."""

from typing import Any, Protocol


class Indexed(Protocol):
    """What an epoch reads: by index, and of a known length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class FirstRows:
    """The first rows of a table, as a table."""

    def __init__(self, rows: Indexed, number: int) -> None:
        self._rows, self._number = rows, number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int, /) -> Any:
        if not 0 <= index < self._number:
            raise IndexError(f"row must be in [0, {self._number}), got {index}")
        return self._rows[index]


class EpochRows:
    """Which rows each epoch has.

    240 rows, saved in the first of 3 epochs, then 20 appended: ``first(240)`` keeps the epoch in
    progress as it was, ``end_epoch()`` gives all 260 to the next, and the run has
    240 + 260 + 260 of them.

    Attributes:
        now: Rows of the epoch in progress.
        past: Rows of all whole epochs so far, added up.
    """

    def __init__(self, rows: Indexed) -> None:
        self._all: Indexed = rows
        self.now: Indexed = rows
        self.past = 0

    def first(self, number: int) -> None:
        """Of the epoch in progress only the first rows count."""
        self.now = FirstRows(self._all, number)

    def end_epoch(self) -> bool:
        """The next epoch has all rows; returns whether these are others than before."""
        self.past += len(self.now)
        grown = self.now is not self._all
        self.now = self._all
        return grown

    def expected(self, num_epochs: int, epochs_done: int) -> int:
        """Rows of the whole run, those of epochs that grew later included."""
        left = num_epochs - epochs_done
        return self.past + (len(self.now) + (left - 1) * len(self._all) if left > 0 else 0)

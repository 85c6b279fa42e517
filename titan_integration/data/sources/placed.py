"""Rows that know where they come from, so that the pictures they name can be found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titan_integration.data.pictures.references import Place, PlacedRow
from titan_integration.data.sources.table import Table


@dataclass(kw_only=True)
class PlacedTable:
    """A table whose rows are ``PlacedRow``; a bare list of messages becomes one as well.

    Args:
        table: The rows.
        folder: Of the file that they are read from; None of a dataset that has none.
    """

    table: Table
    folder: Path | None

    @property
    def files(self) -> Sequence[str]:
        """Of the table."""
        return self.table.files

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int, /) -> Any:
        row = self.table[index]
        if isinstance(row, list):
            row = {"messages": row}
        if not isinstance(row, dict):
            return row
        placed = PlacedRow(row)
        placed.place = Place(self.table, index, self.folder)
        return placed

    def where(self, index: int, /) -> str:
        """As of the table."""
        return self.table.where(index)

    def fingerprint(self) -> str:
        """Of the table; what pictures hold is no part of it."""
        return self.table.fingerprint()

"""The samples of a table: pairs of a row and the number of its part."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from titan_integration.data.sources.table import Table


class SampleIndex:
    """Samples by index, where a row may give several.

    Rows that give 2, 1 and 3 samples: index 0 is ``(rows[0], 0)``, 1 is ``(rows[0], 1)``, 2 is
    ``(rows[1], 0)``, 5 is ``(rows[2], 2)``. Memory: 8 bytes per row, none where each row gives one.
    A row that gives none has one place as well, so that what is dropped is counted when it is met.

    Args:
        table: The rows.
        counts: Samples of each row, ``int[len(table)]``; None where each gives one.
    """

    def __init__(self, table: Table, counts: np.ndarray | None = None) -> None:
        self.table = table
        places = None if counts is None else np.maximum(counts, 1)
        self._ends = None if places is None or (places == 1).all() else np.cumsum(places)

    def __len__(self) -> int:
        return len(self.table) if self._ends is None else int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[Any, int]:
        row, part = self.locate(index)
        return self.table[row], part

    def locate(self, index: int) -> tuple[int, int]:
        """The number of the row, and of the sample among its samples.

        Raises:
            IndexError: ``index`` is not in ``range(len(self))``.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample must be in [0, {len(self)}), got {index}")
        if self._ends is None:
            return index, 0
        row = int(np.searchsorted(self._ends, index, side="right"))
        return row, index - (int(self._ends[row - 1]) if row else 0)

    def where(self, index: int) -> str:
        """``file:line`` of a sample's row, for messages."""
        return self.table.where(self.locate(index)[0])


def counts_of(shares: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Counts in file order, from those of ``range(rank, rows, world_size)`` of every rank."""
    shares = list(shares)
    counts = np.empty(rows, np.int64)
    for rank, share in enumerate(shares):
        counts[rank :: len(shares)] = share
    return counts

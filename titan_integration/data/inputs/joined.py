"""Tables made of tables: one after the other, the first rows of one, and those held out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from odb_nodes.state.permutation import key64
from titan_integration.data.sources.fingerprint import combine
from titan_integration.data.sources.table import Table, check_index


@dataclass(kw_only=True)
class Joined:
    """The rows of several tables, one table after the other."""

    tables: Sequence[Table]
    _ends: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ends = list(accumulate(map(len, self.tables)))

    @property
    def files(self) -> tuple[str, ...]:
        """Of all tables."""
        return tuple(name for table in self.tables for name in table.files)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int, /) -> Any:
        table, row = self._locate(index)
        return table[row]

    def where(self, index: int, /) -> str:
        """As of the table that has the row."""
        table, row = self._locate(index)
        return table.where(row)

    def fingerprint(self) -> str:
        """Of all tables, in their order."""
        return combine(table.fingerprint() for table in self.tables)

    def _locate(self, index: int) -> tuple[Table, int]:
        check_index(index, len(self))
        at = int(np.searchsorted(self._ends, index, side="right"))
        return self.tables[at], index - (self._ends[at - 1] if at else 0)


@dataclass(kw_only=True)
class View:
    """Some rows of another table; subclasses say which."""

    table: Table

    @property
    def files(self) -> Sequence[str]:
        """Of the whole table."""
        return self.table.files

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int, /) -> Any:
        return self.table[self.row(check_index(index, len(self)))]

    def where(self, index: int, /) -> str:
        """As of the whole table."""
        return self.table.where(self.row(check_index(index, len(self))))

    def row(self, index: int) -> int:
        """The row of the whole table."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Of the whole table and of which of its rows these are."""
        return combine([self.table.fingerprint(), type(self).__name__, len(self)])


@dataclass(kw_only=True)
class First(View):
    """The first rows of a table, ``limit`` at most."""

    limit: int

    def __len__(self) -> int:
        return min(self.limit, len(self.table))

    def row(self, index: int) -> int:
        return index


@dataclass(kw_only=True)
class Split(View):
    """The rows of a table that are held out for validation, or the others.

    The rows are divided into strata of ``1 / fraction`` rows, and of each stratum one row is held
    out, chosen by a hash of the stratum's number. So whether a row is held out depends on its
    position alone: the same in every run, on every rank, for every seed, and still the same after
    rows were appended. Memory: none. Example: with a fraction of 0.4, strata begin at rows 0, 2,
    5, 7, 10, ..., and one row of each is held out.

    Args:
        fraction: Part of the rows that is held out, in (0, 0.5].
        held_out: These rows, or the others.
    """

    fraction: float
    held_out: bool
    _ratio: Fraction = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ratio = Fraction(self.fraction).limit_denominator(1_000_000)

    def __len__(self) -> int:
        held = self._num_held_before(len(self.table))
        return held if self.held_out else len(self.table) - held

    def row(self, index: int) -> int:
        if self.held_out:
            return self._held(index)
        # The index-th row that is not held out: ahead of it are as many held-out rows as strata
        # that are done, or one more if that of its own stratum is passed.
        stratum = index * self._ratio.numerator // (self._ratio.denominator - self._ratio.numerator)
        while self._begin(stratum + 1) - (stratum + 1) <= index:
            stratum += 1
        while self._begin(stratum) - stratum > index:
            stratum -= 1
        row = index + stratum
        return row + (row >= self._held(stratum))

    def _begin(self, stratum: int) -> int:
        """First row of a stratum."""
        return stratum * self._ratio.denominator // self._ratio.numerator

    def _held(self, stratum: int) -> int:
        """The row that is held out of a stratum."""
        start, end = self._begin(stratum), self._begin(stratum + 1)
        return start + key64(stratum) % (end - start)

    def _num_held_before(self, row: int) -> int:
        stratum = row * self._ratio.numerator // self._ratio.denominator
        while self._begin(stratum) > row:
            stratum -= 1
        return stratum + (self._held(stratum) < row)

"""Several sources with weights as one table, in which every row knows where it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from odb_nodes.state.permutation import Permutation, key64
from titan_integration.data.sources.fingerprint import combine
from titan_integration.data.sources.table import Table, check_index


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A table and how often an epoch reads it.

    Attributes:
        name: For metrics and messages.
        table: Its rows.
        weight: Repetitions per epoch, over 0. 2 is every row twice; 0.5 is half of the rows, and
            2.5 both: every row twice and half of them once more.
    """

    name: str
    table: Table
    weight: float = 1.0

    @property
    def size(self) -> int:
        """Rows that an epoch takes; one at least, if there are any."""
        return max(round(self.weight * len(self.table)), min(1, len(self.table)))


class Place(NamedTuple):
    """Where a row of a mixture comes from: its source, the repetition, and its row there."""

    source: int
    repetition: int
    row: int


@dataclass(kw_only=True)
class Mixture:
    """All rows of an epoch: a table of (source, repetition, row).

    An epoch is every source as often as its weight says. Where a weight leaves a part over, the
    part is drawn by ``seed`` once and for all: every epoch reads the same rows, so that the
    number of samples and their check hold for the whole run, and states stay exact. Another seed
    draws another part. Memory: none per row.

    Args:
        sources: In the order of their rows.
        seed: Chooses the parts.
    """

    sources: Sequence[Source]
    seed: int = 0
    _ends: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ends = list(accumulate(source.size for source in self.sources))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, by number."""
        return tuple(source.name for source in self.sources)

    @property
    def files(self) -> tuple[str, ...]:
        """Of all sources."""
        return tuple(name for source in self.sources for name in source.table.files)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int, /) -> Any:
        place = self.locate(index)
        return self.sources[place.source].table[place.row]

    def where(self, index: int, /) -> str:
        """As of the source."""
        place = self.locate(index)
        return self.sources[place.source].table.where(place.row)

    def source_of(self, index: int) -> int:
        """Number of the source that a row comes from."""
        return int(np.searchsorted(self._ends, check_index(index, len(self)), side="right"))

    def locate(self, index: int) -> Place:
        """Where a row comes from."""
        at = self.source_of(index)
        inside = index - (self._ends[at - 1] if at else 0)
        rows = len(self.sources[at].table)
        repetition, row = divmod(inside, rows)
        whole = self.sources[at].size // rows
        if repetition == whole:  # the part that is left over
            order = Permutation(rows, key64(self.seed, at))
            row = int(order(np.array([row], np.int64))[0])
        return Place(at, repetition, row)

    def fingerprint(self) -> str:
        """Of all sources, their weights, and the seed where a part was drawn by it."""
        parts = [(source.table.fingerprint(), source.weight) for source in self.sources]
        drawn = any(source.weight % 1 for source in self.sources)
        return combine([*parts, self.seed if drawn else None])

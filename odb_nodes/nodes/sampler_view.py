"""Source node: the views of this rank's share of an epoch, in order."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from odb_nodes.arguments import boolean, integer
from odb_nodes.errors import StateError
from odb_nodes.nodes.graph import EpochSource
from odb_nodes.state.cursor import Positions, ViewCursor
from odb_nodes.state.permutation import Permutation, key64
from odb_nodes.state.schema import ViewState, check_view_state
from odb_nodes.types import View

_CHUNK = 512  # views computed at once


class SamplerView(EpochSource[View]):
    """Yields the views of one rank for one epoch: positions r, r + W, r + 2W, ... in that order.

    Nothing is padded and nothing dropped: the shares of the ranks are disjoint, cover the epoch
    and differ in size by at most one. Opening an epoch and the memory held are O(1) in
    ``num_samples``. The first pass is epoch 0; each ``reset`` without a state starts the next.

    Args:
        num_samples: Length of the dataset.
        rank: Data-parallel rank.
        world_size: Number of data-parallel ranks.
        shuffle: A new order every epoch; else position and index are equal.
        seed: Chooses the orders.
        dataset_id: Names the data, e.g. files, sizes and a digest. It goes into the state, and a
            state of data by another name is refused. None: only the length is compared.
    Raises:
        ValueError: An argument of another type or out of range.
        StateError: On ``reset`` with a state of other data, another seed or another layout.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        dataset_id: str | None = None,
    ) -> None:
        super().__init__(dataset_id)
        self.num_samples = integer("num_samples", num_samples, least=0)
        self.world_size = integer("world_size", world_size, least=1)
        self.rank = integer("rank", rank, least=0, below=self.world_size)
        self.shuffle = boolean("shuffle", shuffle)
        self.seed = integer("seed", seed)
        self._views: list[View] = []  # computed ahead; _views[_at] is the next
        self._start = self._at = 0
        self._open(self._new_cursor(0))

    @property
    def epoch(self) -> int:
        """The pass that the last ``reset`` began."""
        return self.cursor.epoch

    @property
    def reshuffles(self) -> bool:
        """Whether every pass has an order of its own."""
        return self.shuffle

    def check_state(self, state: Any) -> None:
        """Raise ``StateError`` if ``reset`` would not accept this state; changes nothing."""
        self._checked_cursor(state)

    def reset(self, initial_state: Any = None) -> None:
        super().reset(initial_state)
        if initial_state is None:
            self._open(self._new_cursor(self._next_epoch))
        else:
            self._open(self._checked_cursor(initial_state))
        self._next_epoch = self.cursor.epoch + 1

    def next(self) -> View:
        if self._at == len(self._views):
            start = self._start + self._at
            self._views = self.views_at(self.cursor.positions(start, start + _CHUNK))
            self._start, self._at = start, 0
            if not self._views:
                raise StopIteration
        self._at += 1
        return self._views[self._at - 1]

    def get_state(self) -> ViewState:  # type: ignore[override]
        return self.state_of(self.cursor.advanced(self._start + self._at))

    def state_of(self, cursor: ViewCursor) -> ViewState:
        """This node's state at ``cursor``, for a node that knows better what was consumed."""
        return {
            "cursor": cursor.to_state(),
            "shuffle": self.shuffle,
            "seed": self.seed,
            "dataset_id": self.dataset_id,
        }

    def describe(self) -> dict[str, Any]:
        """What must be equal on all ranks, or they share out different epochs."""
        names = ("num_samples", "shuffle", "seed", "dataset_id")
        return {name: getattr(self, name) for name in names}

    def chunks(self, size: int) -> Iterator[list[View]]:
        """The views not taken yet, in lists of ``size``; independent of ``next`` and ``reset``."""
        return _chunks(self.cursor, self._order if self.shuffle else None, size)

    def views_at(self, positions: Positions) -> list[View]:
        """The current epoch's views at these positions."""
        return _views(self.cursor.epoch, positions, self._order if self.shuffle else None)

    def _new_cursor(self, epoch: int) -> ViewCursor:
        return ViewCursor(
            num_samples=self.num_samples, epoch=epoch, rank=self.rank, world_size=self.world_size
        )

    def _open(self, cursor: ViewCursor) -> None:
        self.cursor = cursor  # as it was at the start of this pass; _start and _at move on
        self._order = Permutation(self.num_samples, key64(self.seed, cursor.epoch))
        self._views, self._start, self._at = [], cursor.taken, 0

    def _checked_cursor(self, state: Any) -> ViewCursor:
        known = check_view_state(state)
        cursor = ViewCursor.from_state(known["cursor"])
        self.check_dataset_id(known["dataset_id"])
        for name, saved, here, cure in (
            ("dataset length", cursor.num_samples, self.num_samples, "use the same dataset"),
            ("seed", known["seed"], self.seed, "use the same seed"),
            ("shuffle", known["shuffle"], self.shuffle, "use the same order"),
            ("world size", cursor.world_size, self.world_size, "call reshard_states first"),
            ("rank", cursor.rank, self.rank, "load each rank's own state"),
        ):
            if saved != here:
                raise StateError(f"state has {name} {saved}, this run has {here}: {cure}")
        return cursor


def _chunks(cursor: ViewCursor, order: Permutation | None, size: int) -> Iterator[list[View]]:
    # Many at once: one by one, the permutation took a third of an epoch with a cheap transform.
    block = size * max(1, _CHUNK // size)
    for start in range(cursor.taken, cursor.size, block):
        views = _views(cursor.epoch, cursor.positions(start, start + block), order)
        for at in range(0, len(views), size):
            yield views[at : at + size]


def _views(epoch: int, positions: Positions, order: Permutation | None) -> list[View]:
    indices = positions if order is None else order(positions)
    return list(map(View, repeat(epoch), positions.tolist(), indices.tolist()))

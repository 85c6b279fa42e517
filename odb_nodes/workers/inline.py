"""Mapping without workers: in the thread that consumes."""

from collections.abc import Iterator, Sequence
from typing import Any

from odb_nodes.workers.pool import Chunks
from odb_nodes.workers.watch import Slot, Watch, new_slot
from odb_nodes.workers.worker import Task, map_chunk


class _InlinePass(Iterator[list[Any]]):
    """Maps a chunk at each ``next``; one that Ctrl-C interrupts is mapped again."""

    def __init__(self, task: Task, chunks: Chunks, slot: Slot) -> None:
        self._task = task
        self._chunks = chunks
        self._slot = slot
        self._chunk: Sequence[Any] | None = None

    def __next__(self) -> list[Any]:
        if self._chunk is None:
            self._chunk = next(self._chunks)
        outcomes = map_chunk(self._task, self._chunk, self._slot)
        self._chunk = None
        return outcomes


class Inline:
    """Maps in the thread that consumes.

    Args:
        task: Maps one item.
        timeout_s: Warn of an item that takes longer.
    """

    def __init__(self, task: Task, timeout_s: float) -> None:
        self._task = task
        self._timeout_s = timeout_s
        self._slot = new_slot()
        self._watch: Watch | None = None
        self._passes: list[Iterator[list[Any]]] = []

    def run(self, chunks: Chunks) -> Iterator[list[Any]]:
        if self._watch is None:
            self._watch = Watch([("the calling thread", self._slot)], self._timeout_s)
        pass_ = _InlinePass(self._task, chunks, self._slot)
        self._passes.append(pass_)
        return pass_

    def finish(self, pass_: Iterator[list[Any]]) -> None:
        if pass_ in self._passes:
            self._passes.remove(pass_)
        if not self._passes:
            self.close()

    def close(self) -> None:
        self._passes = []
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def reopen(self, *, keep_workers: bool) -> None:
        self.close()

    def abandon(self) -> None:
        self.close()

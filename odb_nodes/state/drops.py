"""Samples that leave the epoch without being emitted: counted, never silent."""

from collections import deque
from typing import Any

import numpy as np

from odb_nodes.errors import StateError
from odb_nodes.state.checks import read_count
from odb_nodes.state.cursor import digest
from odb_nodes.types import View

_KEPT = 20  # details kept for the summary
_MASK = (1 << 64) - 1


class DropLog:
    """Counts drops by reason, their digest for the coverage check, and the latest details."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.digest = 0
        self.details: deque[tuple[int, str]] = deque(maxlen=_KEPT)

    @property
    def total(self) -> int:
        """Samples dropped, for whatever reason."""
        return sum(self.counts.values())

    def add(self, view: View, reason: str, detail: str | None = None) -> None:
        """Record one dropped sample.

        Args:
            view: The sample.
            reason: A short word to count by.
            detail: What happened, kept with the dataset index for the latest 20.
        """
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.digest = (self.digest + digest(np.array([view.position]))) & _MASK
        if detail is not None:
            self.details.append((view.index, detail[:500]))

    def to_state(self) -> dict[str, Any]:
        """Plain values; the counts are pairs, so that a state has the same keys at every moment."""
        return {
            "counts": [[reason, count] for reason, count in self.counts.items()],
            "digest": self.digest,
            "details": [[index, detail] for index, detail in self.details],
        }

    @staticmethod
    def from_state(state: Any) -> "DropLog":
        """Inverse of ``to_state``.

        Raises:
            StateError: The state is not one of ours.
        """
        if not isinstance(state, dict) or set(state) != {"counts", "digest", "details"}:
            raise StateError("a drop log in the state must have counts, digest and details")
        counts, details = _counts(state["counts"]), state["details"]
        if not isinstance(details, list) or not all(map(_is_detail, details)):
            raise StateError("drop log 'details' must be pairs of dataset index and text")
        log = DropLog()
        log.counts = {reason: read_count(counts, reason, "drop log count") for reason in counts}
        log.digest = read_count(state, "digest", "drop log", below=1 << 64)
        log.details.extend((index, text) for index, text in details)
        return log


def _counts(pairs: Any) -> dict[str, Any]:
    """Counts by reason; a dict is what version 1 had."""
    if isinstance(pairs, dict):
        pairs = list(map(list, pairs.items()))
    is_pairs = isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    )
    if not is_pairs or len({reason for reason, _ in pairs}) < len(pairs):
        raise StateError("drop log 'counts' must be pairs of a reason and a number")
    return dict(pairs)


def _is_detail(item: Any) -> bool:
    ok = isinstance(item, list) and len(item) == 2
    return ok and isinstance(item[0], int) and isinstance(item[1], str)

"""Samples that leave the epoch without being emitted: counted, never silent."""

from collections import deque
from typing import Any

import numpy as np

from odb_nodes.errors import StateError
from odb_nodes.types import View
from odb_nodes.views import digest

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
        """Plain values."""
        return {
            "counts": dict(self.counts),
            "digest": self.digest,
            "details": [[index, detail] for index, detail in self.details],
        }

    @staticmethod
    def from_state(state: Any) -> "DropLog":
        """Inverse of ``to_state``.

        Raises:
            StateError: The state is not one of ours.
        """
        log = DropLog()
        try:
            for reason, count in state["counts"].items():
                log.counts[str(reason)] = int(count)
            log.digest = int(state["digest"]) & _MASK
            log.details.extend((int(index), str(detail)) for index, detail in state["details"])
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise StateError(f"the drop log in the state is damaged: {error!r}") from None
        return log

"""What an alignment policy decides: when a window is refilled, and how long a round is."""

from collections.abc import Callable
from typing import Protocol

from odb_nodes.batching.window import Window
from odb_nodes.protocol.proposal import Proposal
from odb_nodes.protocol.reports import Facts

Refill = Callable[[Window], bool]


class Policy(Protocol):
    """When windows are refilled, and how many steps a round has."""

    name: str

    def capacity(self, window: int, steps: int, samples: float) -> int | None:
        """Most steps of the next round, unless the user says; None for no bound.

        Args:
            window: Samples buffered a rank.
            steps: Steps of the pass so far.
            samples: Samples that a rank emitted on them, on average over the ranks.
        """

    def propose(self, window: Window, refill: Refill, capacity: int | None) -> Proposal:
        """Fill the window and offer groups.

        Args:
            window: This rank's window.
            refill: Tops the window up; returns whether the view may have more.
            capacity: Most steps of the round, or None for no bound but the policy's own.
        """

    def target(self, facts: Facts) -> int:
        """T, the steps of the round, at least 1. Asked only if some rank has samples."""

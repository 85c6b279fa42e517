"""When a run ends: after epochs (fractions too), a number of samples, or of steps. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titan_integration.data.totals import Totals


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """The end of a run.

    Attributes:
        rows: Samples of an epoch.
        epochs: How many; None where steps end the run.
        quota: End at the first step that reaches so many samples; None: no such end.
    """

    rows: int
    epochs: float | None
    quota: int | None

    @property
    def samples(self) -> int | None:
        """Samples of the whole run, as far as is known before; None where steps end it."""
        whole = None if self.epochs is None else math.ceil(self.rows * self.epochs)
        return min((n for n in (whole, self.quota) if n is not None), default=None)

    def reached(self, totals: Totals, progress: Mapping[str, Any]) -> bool:
        """Whether nothing is left to train.

        With 100 rows, 1.5 epochs end at the first step after which the second epoch has 50.

        Args:
            totals: Counts so far.
            progress: ``describe_state`` of the data's state.
        """
        if self.quota is not None and totals.samples >= self.quota:
            return True
        if self.epochs is None:
            return False
        whole = math.floor(self.epochs)
        part = (self.epochs - whole) * self.rows
        if totals.epochs_done > whole or (totals.epochs_done == whole and not part):
            return True
        in_epoch = 0 if progress["epoch"] < totals.epochs_done else progress["total_emitted"]
        return totals.epochs_done == whole and in_epoch >= part

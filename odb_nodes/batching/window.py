"""The window: samples buffered on one rank, and the groups that its layout cuts from them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.keys import age_of, length_of, make_key
from odb_nodes.batching.layout import Layout, Limits
from odb_nodes.batching.ordered import OrderedKeys
from odb_nodes.batching.padded import Padded

__all__ = ["Window", "age_of", "length_of", "make_key"]


class Window:
    """The buffered samples of one rank.

    Args:
        budget: Limits of a group.
        further: Further costs of a key (``TokenBudget.costs``), needed if the budget has extras;
            kept up to date by the caller.
        layout: How groups are cut; by default padded.
    """

    def __init__(
        self,
        budget: TokenBudget,
        further: Mapping[int, tuple[int, ...]] | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.layout: Layout = Padded() if layout is None else layout
        self._limits = Limits(budget, further if budget.extra else None)
        self._keys = OrderedKeys()
        self._plan: list[list[int]] | None = None  # of drain_plan, while it holds

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def budget(self) -> TokenBudget:
        """Limits of a group."""
        return self._limits.budget

    def aim(self, target: float | None) -> None:
        """Groups from now on are full at this cost; None: at the budget alone."""
        if target != self._limits.target:
            self._limits.target, self._plan = target, None

    def add(self, key: int) -> None:
        """Add the youngest sample."""
        self._keys.add(key)
        self._plan = None

    def put_back(self, keys: Iterable[int]) -> None:
        """Return samples that were taken; they keep their age. O(n log n)."""
        self._keys.put_back(keys)
        self._plan = None

    def remove(self, keys: Iterable[int]) -> None:
        """Remove samples, all of which must be here."""
        gone = set(keys)
        self._plan = self._plan_without(gone)
        self._keys.remove(gone)

    def partition(self) -> list[list[int]]:
        """All samples cut into groups; the window is left as it is."""
        return self.layout.partition(self._keys, self._limits)

    def drain_plan(self) -> list[list[int]]:
        """``partition`` in the order of each group's oldest sample, which knows no length."""
        if self._plan is None:
            self._plan = sorted(self.partition(), key=lambda group: min(map(age_of, group)))
        return self._plan

    def take_best(self) -> list[int]:
        """Remove and return the next group.

        It holds the oldest sample. So a sample waits for fewer calls than the window held samples
        when it arrived.
        """
        self._plan = None
        return self.layout.take(self._keys, self._limits)

    def weight(self, group: Sequence[int]) -> float:
        """What groups are ranked by; see ``Layout``."""
        return self.layout.weight(group)

    def _plan_without(self, gone: set[int]) -> list[list[int]] | None:
        """The drain plan after a removal, if it is known."""
        if self._plan is None or not self.layout.is_stable(self._limits):
            return None
        front = list(takewhile(gone.issuperset, self._plan))
        return self._plan[len(front) :] if sum(map(len, front)) == len(gone) else None

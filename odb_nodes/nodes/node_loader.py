"""A loader over any torchdata node whose states are right also after it started again."""

import copy
import logging
from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import get_worker_info

from odb_nodes.nodes.upstream import BaseNode, Loader

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Iteration(Iterator[T]):
    """One pass over the root of a loader; a later one takes its place."""

    def __init__(self, loader: "NodeLoader[T]") -> None:
        self._loader = loader

    def __next__(self) -> T:
        return self._loader._next(self)


class NodeLoader(Loader[T]):
    """``torchdata.nodes.Loader`` with exact states, for ``GroupingNode`` or graphs of one's own.

    Torchdata 0.11 gives the state of the end of a pass for ever once it has started again after
    one, and reports a state that does not fit at the next ``iter``. Here ``load_state_dict`` checks
    a state where the root can (``check_state``), and ``state_dict`` gives the loaded place at once.

    Every ``iter()`` without a loaded state starts the next pass. ``peek`` looks at the first item
    of a pass without using it up.

    Args:
        root: The node to iterate over.
        restart_on_stop_iteration: Iterating from a state of the end of a pass gives the next pass;
            else nothing.
    """

    def __init__(self, root: BaseNode[T], restart_on_stop_iteration: bool = True) -> None:
        super().__init__(root, restart_on_stop_iteration)
        self._iteration: Iteration[T] | None = None  # the latest
        self._begun = False  # it began for a state or a peek, and iter() has not handed it out
        self._ahead: list[T] = []  # an item taken from the root before it was asked for
        self._state_before: Any = None  # of the root before that item
        self._loaded: Any = None  # a state to begin from
        self._final: Any = None  # the state at the end of the pass

    def __iter__(self) -> Iterator[T]:
        self._refuse_in_a_worker()
        if not self._begun:
            self._begin()
        self._begun = False
        assert self._iteration is not None
        return self._iteration

    def peek(self) -> T:
        """The first item of the next pass, which the next ``iter()`` gives again.

        Raises:
            StopIteration: There is none.
        """
        if not self._begun:
            self._begin()
            self._begun = True
        if not self._ahead:
            self._look_ahead()
        if not self._ahead:
            raise StopIteration
        return self._ahead[0]

    def state_dict(self) -> dict[str, Any]:
        """The state after the item returned last; on a new loader this begins the first pass."""
        if self._loaded is not None:
            return self._copy(self._loaded)
        if self._iteration is None:
            self._begin()
            self._begun = True
        if self._final is not None:
            return self._copy(self._final)
        return self._copy(self._state_before if self._ahead else self.root.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from here at the next ``iter()``.

        Raises:
            StateError: The state does not fit, as far as the root can tell without starting.
        """
        if hasattr(self.root, "check_state"):
            self.root.check_state(state_dict)
        self._loaded, self._begun = self._copy(state_dict), False

    def _begin(self) -> None:
        state, self._loaded = self._loaded, None
        self._ahead, self._state_before, self._final = [], None, None
        self._iteration = Iteration(self)
        self.root.reset(state)
        if state is not None and self.restart_on_stop_iteration and not self._look_ahead():
            self._say_restart()
            self._final = None
            self.root.reset(None)

    def _look_ahead(self) -> bool:
        """Take an item ahead of time; returns whether there is one."""
        self._state_before = self.root.state_dict()
        try:
            self._ahead = [next(self.root)]
        except StopIteration:
            self._note_end()
        return bool(self._ahead)

    def _next(self, iteration: Iteration[T]) -> T:
        if iteration is not self._iteration:
            raise RuntimeError("this iterator is over: a later iter() of its loader took its place")
        if self._final is not None:
            raise StopIteration
        if self._ahead:
            return self._ahead.pop()
        try:
            item: T = next(self.root)
        except StopIteration:
            self._note_end()
            raise
        return item

    def _note_end(self) -> None:
        self._final = self.root.state_dict()

    def _say_restart(self) -> None:
        logger.info("the loaded state is of the end of a pass: the next pass begins")

    def _copy(self, state: Any) -> dict[str, Any]:
        copied: dict[str, Any] = copy.deepcopy(state)  # of any node: it may hold tensors
        return copied

    @staticmethod
    def _refuse_in_a_worker() -> None:
        if get_worker_info() is not None:
            raise RuntimeError(
                "a loader of torchdata nodes cannot run in the workers of a DataLoader, each of "
                "which would read every sample: iterate over it directly, and give it num_workers"
            )

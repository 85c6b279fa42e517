"""Source node: the items of an iterable, with an exact place in it."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from odb_nodes.arguments import choice
from odb_nodes.errors import StateError
from odb_nodes.nodes.graph import EpochSource, not_repeatable
from odb_nodes.state.content import pack_value, unpack_value
from odb_nodes.state.schema import StreamState, check_stream_state

logger = logging.getLogger(__name__)
# Of datasets 4.7 by measurement: stopped at many places and resumed, these gave every row once. Not
# among them are BufferShuffled, whose state leaves out the buffer, and Formatted, which map and
# filter put before themselves on Arrow data, and whose state is that of a whole Arrow batch.
_EXACT_IN_DATASETS = frozenset(
    f"{name}Iterable"
    for name in (
        "Examples",
        "ArrowExamples",
        "RebatchedArrowExamples",
        "MappedExamples",
        "FilteredExamples",
        "SkipExamples",
        "TakeExamples",
        "RepeatExamples",
        "SelectColumns",
        "CyclingMultiSourcesExamples",
        "RandomlyCyclingMultiSourcesExamples",
        "VerticallyConcatenatedMultiSourcesExamples",
    )
)


class StreamView(EpochSource[Any]):
    """Yields the items of one pass over an iterable; each ``reset`` without a state starts another.

    An iterable with ``state_dict`` and ``load_state_dict`` (a Hugging Face ``IterableDataset``, a
    whole ``StatefulDataLoader`` that yields single samples) resumes by its own state. Any other is
    read again from the start of the pass up to its place, which takes as long as reading did. So
    is a Hugging Face stream whose own state loses rows: of a shuffle buffer, or of the rest of an
    Arrow batch under ``map`` and ``filter``. Put such a function into a torchdata ``Mapper`` behind
    the ``StreamView`` instead, and the stream resumes at once.
    Reading again is exact if the iterable yields the same items in every run.

    An iterable with ``set_epoch`` is told the number of each pass before it begins.

    Args:
        iterable: Gives a new iterator at every ``iter``; of this rank alone.
        resume: By the iterable's own "state", by "skip" (reading again), or "auto" as above.
        dataset_id: Names the data; a state of data by another name is refused.
    Raises:
        ValueError: An iterator, or an iterable with half of the methods needed.
        SampleError: From the first ``next``: the iterable's state cannot be packed.
        StateError: From ``reset``: the state is not one of ours, or the iterable is shorter now.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        *,
        resume: Literal["auto", "state", "skip"] = "auto",
        dataset_id: str | None = None,
    ) -> None:
        super().__init__(dataset_id)
        why = not_repeatable(iterable)
        if hasattr(iterable, "state_dict") and not hasattr(iterable, "__next__"):
            why = None
        if not hasattr(iterable, "__iter__") or why is not None:
            raise ValueError(
                "iterable must give a new iterator at every iter(), over the same items in the "
                f"same order, got {type(iterable).__name__}" + (f": {why}" if why else "")
            )
        choice("resume", resume, ("auto", "state", "skip"))
        found = [hasattr(iterable, name) for name in ("state_dict", "load_state_dict")]
        if resume != "skip" and (
            any(found) != all(found) or (resume == "state" and not all(found))
        ):
            raise ValueError(
                f"{type(iterable).__name__} must have both state_dict and load_state_dict, got "
                'one or none: pass resume="skip"'
            )
        self._iterable: Any = iterable
        by_state = resume == "state" or (resume == "auto" and _has_exact_state(iterable))
        self._by_state = all(found) and by_state
        self._what = f"the state of {type(iterable).__name__}"
        self.epoch = 0
        self._was_restored = False  # the iterable was given a state at some time
        self._at_first = True  # no item was read in this pass yet
        self._still: set[bytes | None] = set()  # states that do not say where the iterable is
        self._exhausted = False
        self._loaded: bytes | None = None  # the iterable's state, until it moves on from it
        self._base: tuple[bytes | None, int] = (None, 0)  # a state it gave, and items before that
        self._iterator: Iterator[Any] = iter(())
        self._begin(epoch=0, num_yielded=0, exhausted=False, loaded=None)
        self._next_epoch = 0

    @property
    def reshuffles(self) -> bool:
        """Whether every pass may have an order of its own."""
        return hasattr(self._iterable, "set_epoch")

    def describe(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        return {"dataset_id": self.dataset_id}

    def check_state(self, state: Any) -> None:
        """Raise ``StateError`` if ``reset`` would not accept this state; changes nothing."""
        self._checked(state)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is None:
            # The iterable may stand at the end of a pass that it did not run itself.
            at_end = self._loaded is not None and self._exhausted
            self._begin(epoch=self._next_epoch, num_yielded=0, exhausted=False, loaded=None)
            self._tell_epoch()
            self._iterator = iter(self._iterable)
            self._may_stand_at_end = at_end
            if self._by_state:
                begun = self._packed_state()
                self._still = {begun}
                # Once a state was loaded, the one that is there now may still be of its place.
                self._base = (None if self._was_restored else begun, 0)
        else:
            self._restore(initial_state)

    def next(self) -> Any:
        if self._exhausted:
            raise StopIteration
        try:
            item = self._next_item()
        except StopIteration:
            self._exhausted = True
            self._loaded = None
            raise
        self._loaded = None
        self._num_yielded += 1
        if self._by_state and self._at_first:
            self._still.add(self._packed_state())  # fails now for what a checkpoint cannot hold
        self._at_first = False
        return item

    def get_state(self) -> StreamState:  # type: ignore[override]
        base, at = self._known_place()
        return {
            "epoch": self.epoch,
            "num_yielded": self._num_yielded,
            "exhausted": self._exhausted,
            "iterable": base,
            "since": self._num_yielded - at if self._by_state else 0,
            "dataset_id": self.dataset_id,
        }

    def _known_place(self) -> tuple[bytes | None, int]:
        """A state of the iterable, and how many items of this pass came before it.

        A state that stands still while items come does not say where the iterable is: datasets
        5.0.0 gives such states after a resume, that of an iterable that never began. So none is
        relied on that was there before the first item, or after it. Until there is another one, the
        place is that at which the iterable began, and the items since are read again.
        """
        if not self._by_state:
            return None, 0
        if self._loaded is not None:
            return self._base
        state = self._packed_state()
        if state not in self._still and state != self._base[0]:
            self._base = (state, self._num_yielded)
        return self._base

    def _packed_state(self) -> bytes:
        return pack_value(self._iterable.state_dict(), self._what)

    def _begin(
        self, *, epoch: int, num_yielded: int, exhausted: bool, loaded: bytes | None
    ) -> None:
        self.epoch, self._next_epoch = epoch, epoch + 1
        self._num_yielded, self._exhausted, self._loaded = num_yielded, exhausted, loaded
        self._base = (loaded, num_yielded)
        self._still, self._at_first = {loaded}, True
        self._may_stand_at_end = False
        self._iterator = iter(())

    def _tell_epoch(self) -> None:
        if hasattr(self._iterable, "set_epoch"):
            self._iterable.set_epoch(self.epoch)

    def _next_item(self) -> Any:
        may_stand_at_end, self._may_stand_at_end = self._may_stand_at_end, False
        try:
            return next(self._iterator)
        except StopIteration:
            if not may_stand_at_end:
                raise
        self._iterator = iter(self._iterable)
        return next(self._iterator)

    def _checked(self, state: Any) -> tuple[StreamState, Any]:
        """A state that fits, and the iterable's own state in it."""
        known = check_stream_state(state)
        inner = known["iterable"]
        if inner is not None and not self._by_state:
            raise StateError(
                "state was saved with a state of the iterable, this "
                f"{type(self._iterable).__name__} is resumed by skipping: use the same iterable "
                "and resume="
            )
        self.check_dataset_id(known["dataset_id"])
        return known, None if inner is None else unpack_value(inner, self._what)

    def _restore(self, initial_state: Any) -> None:
        state, own = self._checked(initial_state)
        inner, since, exhausted = state["iterable"], state["since"], state["exhausted"]
        self._begin(
            epoch=state["epoch"],
            num_yielded=state["num_yielded"],
            exhausted=exhausted,
            loaded=inner,
        )
        self._base = (inner, self._num_yielded - since)
        self._tell_epoch()
        if inner is not None:
            self._was_restored = True
            self._iterable.load_state_dict(own)
        if not exhausted:
            self._iterator = iter(self._iterable)
            self._may_stand_at_end = self._base[1] == 0
            if self._by_state:
                self._still.add(self._packed_state())
            self._skip(since if inner is not None else self._num_yielded)

    def _skip(self, count: int) -> None:
        if count:
            logger.info("reading %d items of the stream again to find the place", count)
        for done in range(count):
            try:
                self._next_item()
            except StopIteration:
                raise StateError(
                    f"state is {count} items into the stream, it now ends at {done}"
                ) from None
            if done == 0 and self._by_state:
                self._still.add(self._packed_state())


def _has_exact_state(iterable: Any) -> bool:
    """Whether its own state loses nothing.

    True unless a part of ``datasets`` is in there that loses rows, or that is not known.
    """
    parts, seen = [iterable], 0
    while parts and seen < 1000:
        part = parts.pop()
        seen += 1
        name = type(part).__name__
        streams = type(part).__module__.startswith("datasets.") and name.endswith("Iterable")
        if streams and name not in _EXACT_IN_DATASETS:
            return False
        inner = getattr(part, "__dict__", {})
        parts += [
            inner[name] for name in ("dataset", "_ex_iterable", "ex_iterable") if name in inner
        ]
        parts += inner.get("ex_iterables") or []
    return True

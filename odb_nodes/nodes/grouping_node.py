"""Node: a window of samples cut into groups under a token budget."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from torchdata.nodes import BaseNode

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.layouts import find_layout
from odb_nodes.batching.window import Window, make_key
from odb_nodes.errors import SampleError, StateError
from odb_nodes.nodes.buffered import BufferedSample, ContentRefs, Filler, PositionRefs, SampleRefs
from odb_nodes.nodes.prepare import checked_length, default_length
from odb_nodes.nodes.upstream import stop
from odb_nodes.state.drops import DropLog
from odb_nodes.state.schema import check_window_state
from odb_nodes.types import Sample, View

logger = logging.getLogger(__name__)


class GroupingNode(BaseNode[list[list[Sample]]]):
    """Buffers samples and cuts them into groups of at most ``budget`` tokens.

    On its own it yields one tumbling window after the other, each cut into the fewest groups.
    Under an ``AlignNode`` it is the window, and the alignment policy decides what is taken.

    BufferedSample samples are saved as positions (8 bytes each) if the source can rebuild them
    (``SampleMapper``), else by content.

    Args:
        source: Yields ``Sample``, or anything that ``length`` can measure.
        budget: Limits of a group; an int is ``TokenBudget(max_tokens)``.
        window: Samples buffered.
        length: ``data -> int`` in tokens for sources that do not yield ``Sample``; default
            ``len(data["input_ids"])``.
        overlong: A sample longer than the budget (packed: than a row) goes out "alone" (one warning
            per epoch), is dropped ("drop", counted), or is an error ("raise").
        layout: "padded", groups of like length that are at most ``budget`` when padded to the
            longest; "packed", whose sum is; or a ``Padded`` or ``Packed``.
    Raises:
        ValueError: An argument out of range.
        SampleError: From ``next``: a sample without length, or one that a state cannot hold.
    """

    SOURCE_KEY = "source"
    HELD_KEY = "held"
    DROPS_KEY = "drops"
    ARRIVED_KEY = "arrived"
    OVERLONG_KEY = "overlong"
    FILLER_KEY = "filler"
    FILLER_LENGTH_KEY = "filler_length"

    def __init__(
        self,
        source: BaseNode[Any],
        budget: TokenBudget | int,
        *,
        window: int = 1024,
        length: Callable[[Any], int] | None = None,
        overlong: Literal["alone", "drop", "raise"] = "alone",
        layout: str | Layout = "padded",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        if overlong not in ("alone", "drop", "raise"):
            raise ValueError(f"overlong must be 'alone', 'drop' or 'raise', got {overlong!r}")
        self.budget = TokenBudget(budget) if isinstance(budget, int) else budget
        self.layout = find_layout(layout)
        self._longest = self.layout.longest(self.budget)
        self.window_size = window
        self.source = source
        by_position = hasattr(source, "rebuild")
        self.sample_refs: SampleRefs = PositionRefs(source) if by_position else ContentRefs()
        self._length = length or default_length
        self._overlong = overlong
        self.interrupted = False  # set by AlignNode to end a refill early
        self._exhausted = False
        self._clear()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is None:
            self.source.reset(None)
            self._clear()
        else:
            self._restore(initial_state)

    def next(self) -> list[list[Sample]]:
        self.refill()
        groups = self.window.partition()
        if not groups:
            raise StopIteration
        self.window.remove(key for group in groups for key in group)
        return [[held.sample for held in self.take(group)] for group in groups]

    def get_state(self) -> dict[str, Any]:
        return {
            self.SOURCE_KEY: self.source.state_dict(),
            self.HELD_KEY: self.sample_refs.join(self._refs.values()),
            self.DROPS_KEY: self.drops.to_state(),
            self.ARRIVED_KEY: self._arrived,
            self.OVERLONG_KEY: self.num_overlong,
            self.FILLER_KEY: None if self.filler.refs is None else self.filler.refs[:],
            self.FILLER_LENGTH_KEY: self.filler.length,
        }

    def refill(self, window: Window | None = None) -> bool:
        """Top the window up. Returns whether the source may have more."""
        size, window = self.window_size, self.window
        while len(window) < size:
            if self._exhausted or self.interrupted:
                return False
            try:
                item = next(self.source)
            except StopIteration:
                self._exhausted = True
                return False
            self._admit(item)
        return True

    def take(self, keys: Sequence[int]) -> list[BufferedSample]:
        """Hand out samples that the window let go."""
        for key in keys:
            self._costs.pop(key, None)
            del self._refs[key]
        return [self._held.pop(key) for key in keys]

    def put_back(self, buffered: Iterable[BufferedSample]) -> None:
        """Take samples back into the window, as its youngest."""
        for held in buffered:
            self._add(held)

    def describe(self) -> str:
        """Budget and layout as text, equal for equal ones."""
        return ";".join(filter(None, (self.budget.describe(), self.layout.describe())))

    def expected_digest(self) -> int:
        """Digest of the positions that this epoch must emit or drop on this rank."""
        return self.sample_refs.expected_digest(self._arrived)

    def all_drops(self) -> dict[str, int]:
        """Dropped samples of this epoch by reason, those of the source included."""
        counts = dict(getattr(self.source, "drops", DropLog()).counts)
        for reason, count in self.drops.counts.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def drops_digest(self) -> int:
        """Digest of the positions dropped in this epoch."""
        upstream: DropLog = getattr(self.source, "drops", DropLog())
        return self.drops.digest + upstream.digest

    def shutdown(self) -> None:
        """End the threads and worker processes of the source; ``reset`` starts new ones."""
        if hasattr(self.source, "shutdown"):
            self.source.shutdown()
        else:
            stop(self.source)

    @property
    def epoch(self) -> int:
        """Pass over the data, as the nearest node towards the source counts it; else 0."""
        view = self.view
        return 0 if view is None else int(view.epoch)

    @property
    def view(self) -> Any:
        """The nearest node towards the source that counts epochs; None if there is none."""
        node: Any = self.source
        while node is not None and not hasattr(node, "epoch"):
            node = getattr(node, "view", None) or getattr(node, "source", None)
        return node

    def _clear(self) -> None:
        self._costs: dict[int, tuple[int, ...]] = {}
        self.window = Window(self.budget, self._costs, self.layout)
        self._held: dict[int, BufferedSample] = {}  # by key, in order of arrival
        self._refs: dict[int, Any] = {}  # their refs again: a state is taken at every step
        self._age = 0
        self._arrived = 0
        self._exhausted = False
        self.interrupted = False
        self.num_overlong = 0
        self.drops = DropLog()
        self.filler = Filler(self.sample_refs)

    def _admit(self, item: Any) -> None:
        if isinstance(item, Sample):
            sample = item
        else:
            view = View(self.epoch, self._arrived, self._arrived)
            sample = Sample(view, item, checked_length(self._length, item))
        self._arrived += 1
        if sample.length == 0:
            self.drops.add(sample.view, "empty")
        elif sample.length <= self._longest or self._keep_overlong(sample):
            self._add(self.sample_refs.hold(sample))

    def _keep_overlong(self, sample: Sample) -> bool:
        what = "the budget of" if self._longest == self.budget.max_tokens else "a row's"
        told = f"dataset[{sample.view.index}] has {sample.length} tokens, over {what} "
        told += str(self._longest)
        if self._overlong == "raise":
            raise SampleError(f'{told}: raise token_budget, or use overlong="alone" or "drop"')
        if self._overlong == "drop":
            self.drops.add(sample.view, "overlong", told)
            return False
        if self.num_overlong == 0:
            logger.warning("%s: it goes out alone; others of this epoch are only counted", told)
        self.num_overlong += 1
        return True

    def _add(self, held: BufferedSample) -> None:
        sample = held.sample
        self.filler.consider(held)
        key = make_key(self.budget.padded(sample.length), self._age)
        self._age += 1
        if self.budget.extra:
            self._costs[key] = self.budget.costs(sample.data)
        self._held[key], self._refs[key] = held, held.ref
        self.window.add(key)

    def _restore(self, state: dict[str, Any]) -> None:
        state = check_window_state(state)
        self._check_kind(state[self.HELD_KEY])
        self._restore_source(state[self.SOURCE_KEY])
        held = self.sample_refs.restore(state[self.HELD_KEY], "state 'held'")
        refs = None if state[self.FILLER_KEY] is None else state[self.FILLER_KEY][:]
        filler = Filler(self.sample_refs, refs, state[self.FILLER_LENGTH_KEY])
        if isinstance(self.sample_refs, ContentRefs):
            filler.load()  # damaged content is told of now, and costs nothing to unpack
        self._clear()
        self.filler = filler
        self.put_back(held)
        self.drops = DropLog.from_state(state[self.DROPS_KEY])
        self._arrived, self.num_overlong = state[self.ARRIVED_KEY], state[self.OVERLONG_KEY]

    def _check_kind(self, refs: Any) -> None:
        kind = PositionRefs.kind if isinstance(refs, bytes) else ContentRefs.kind
        if kind != self.sample_refs.kind:
            raise StateError(
                f"state holds samples {kind}, this source saves them {self.sample_refs.kind}: "
                "load it with the kind of source that saved it"
            )

    def _restore_source(self, state: Any) -> None:
        try:
            self.source.reset(state)
        except StateError:
            raise
        except Exception as error:  # of nodes that do not check what they are given
            raise StateError(f"the source did not accept its state: {error!r:.200}") from error

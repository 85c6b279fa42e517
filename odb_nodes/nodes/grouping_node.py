"""Node: a window of samples cut into groups under a token budget."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from odb_nodes.arguments import choice, function, integer
from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.layouts import find_layout
from odb_nodes.batching.window import Window, make_key
from odb_nodes.errors import SampleError, StateError
from odb_nodes.nodes.graph import check_sources, epoch_counter
from odb_nodes.nodes.stream_source import Dropped, Failed
from odb_nodes.nodes.upstream import BaseNode, stop
from odb_nodes.samples.buffered import (
    BufferedSample,
    ContentRefs,
    Filler,
    PositionRefs,
    RebuildingSource,
    SampleRefs,
    check_sums,
)
from odb_nodes.samples.limits import costs_of, warn_of_a_small_window, warn_of_void_limits
from odb_nodes.samples.prepare import checked_length, default_length
from odb_nodes.samples.user_code import as_error, call_user_code
from odb_nodes.state.content import pack_value, unpack_value
from odb_nodes.state.cursor import digest_one
from odb_nodes.state.drops import DropLog
from odb_nodes.state.schema import WindowState, check_window_state
from odb_nodes.types import Sample, View

logger = logging.getLogger(__name__)
_MASK = (1 << 64) - 1


class GroupingNode(BaseNode[list[list[Sample]]]):
    """Buffers samples and cuts them into groups of at most ``budget`` tokens.

    On its own it yields one tumbling window after the other, each cut into the fewest groups.
    Under an ``AlignNode`` it is the window, and the alignment policy decides what is taken.

    Samples in the window are saved as positions (8 bytes each) if the source can rebuild them
    (``RebuildingSource``: a ``SampleMapper``), else by content: with any node between a mapper and
    this one, for example.

    Args:
        source: Yields ``Sample``, or anything that ``length`` can measure. None counts as dropped.
        budget: Limits of a group; an int is ``TokenBudget(max_tokens)``.
        window: Samples buffered.
        length: ``data -> int`` in tokens for sources that do not yield ``Sample``; default
            ``len(data["input_ids"])``.
        overlong: A sample longer than the budget (packed: than a row) goes out "alone" (one warning
            per epoch), is dropped ("drop", counted), or is an error ("raise").
        layout: "padded", groups of like length that are at most ``budget`` when padded to the
            longest; "packed", whose sum is; or a ``Padded`` or ``Packed``.
    Raises:
        ValueError: An argument out of range, or a source whose state is known to be inexact.
        SampleError: From ``next``: a sample without length, or one that a state cannot hold.
    """

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
        if not isinstance(budget, TokenBudget):
            budget = TokenBudget(integer("token_budget", budget, least=1))
        function("length", length, "a function of a sample's data")
        check_sources(source)
        self.budget = budget
        self.layout = find_layout(layout)
        self._longest = self.layout.longest(budget)
        self.window_size = integer("window", window, least=1)
        self.source = source
        self._rebuilding = source if isinstance(source, RebuildingSource) else None
        self.sample_refs: SampleRefs = (
            ContentRefs() if self._rebuilding is None else PositionRefs(self._rebuilding)
        )
        self._length = length or default_length
        self._overlong = choice("overlong", overlong, ("alone", "drop", "raise"))
        warn_of_void_limits(self.budget, self.window_size)
        self.interrupted = False  # set by AlignNode to end a refill early
        self.epoch = 0
        self._started = self._seen_full = self._exhausted = False
        self._clear()

    def reset(self, initial_state: Any = None) -> None:
        super().reset(initial_state)
        if initial_state is None:
            self._begin_pass()
        else:
            self._restore(initial_state)
        self._started = True

    def next(self) -> list[list[Sample]]:
        self.refill()
        groups = self.window.partition()
        if not groups:
            raise StopIteration
        self.window.remove(key for group in groups for key in group)
        return [[buffered.sample for buffered in self.take(group)] for group in groups]

    def get_state(self) -> WindowState:  # type: ignore[override]
        source = self.source.state_dict()
        return {
            "source": source if self._rebuilding else pack_value(source, _SOURCE),
            "held": self.sample_refs.join(self._refs.values()),
            "held_tokens": self._held_tokens,
            "held_loss_tokens": self._held_loss_tokens,
            "drops": self.drops.to_state(),
            "arrived": self._arrived,
            "arrived_digest": self._arrived_digest,
            "overlong": self.num_overlong,
            "exhausted": (self._exhausted or self._was_exhausted) and self._rebuilding is None,
            "filler": None if self.filler.refs is None else self.filler.refs[:],
            "filler_length": self.filler.length,
        }

    def describe(self) -> str:
        """Budget and layout as text, equal for equal ones."""
        return ";".join(filter(None, (self.budget.describe(), self.layout.describe())))

    def check_state(self, state: WindowState) -> None:
        """Raise ``StateError`` if ``reset`` would not accept this state; changes nothing."""
        self._checked(state)

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
            except Exception:
                raise
            except BaseException as error:
                raise as_error(error, f"while reading sample {self._arrived} of a pass") from error
            if self._was_exhausted:
                raise StateError(
                    f"the source, a {type(self.source).__name__}, goes on after its end when it is "
                    "resumed there: next() must raise StopIteration again until reset()"
                )
            self._admit(item)
        if not self._seen_full:
            self._seen_full = True
            lengths = (item.sample.length for item in self._buffered.values())
            warn_of_a_small_window(self.budget, self.window_size, lengths)
        return True

    def take(self, keys: Sequence[int]) -> list[BufferedSample]:
        """Hand out samples that the window let go."""
        for key in keys:
            self._costs.pop(key, None)
            del self._refs[key]
        taken = [self._buffered.pop(key) for key in keys]
        self._held_tokens -= sum([buffered.sample.length for buffered in taken])
        self._held_loss_tokens -= sum([buffered.loss_tokens for buffered in taken])
        return taken

    def put_back(self, buffered: Iterable[BufferedSample]) -> None:
        """Take samples back into the window, as its youngest."""
        for item in buffered:
            self._add(item)

    def missing_digest(self, emitted_digest: int) -> int:
        """0 if what arrived was emitted or dropped, each sample once, at the end of a pass.

        Coverage is checked twice: what reached the window against what left it, for any source; and
        for a source that knows its share, what it gave and dropped against that share.

        Args:
            emitted_digest: Of the positions emitted in this pass.
        """
        missing = (self._arrived_digest - emitted_digest - self.drops.digest) & _MASK
        if missing or self._rebuilding is None:
            return missing
        share: int = self._rebuilding.view.cursor.share_digest()
        return (share - self._arrived_digest - self._rebuilding.drops.digest) & _MASK

    def all_drops(self) -> dict[str, int]:
        """Dropped samples of this epoch by reason, those of the source included."""
        counts = dict(getattr(self.source, "drops", DropLog()).counts)
        for reason, count in self.drops.counts.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def pause(self) -> None:
        """End the pass of the source early; workers that are to persist stay."""
        if hasattr(self.source, "pause"):
            self.source.pause()
        else:
            self.shutdown()

    def shutdown(self) -> None:
        """End the threads and worker processes of the source; ``reset`` starts new ones."""
        if hasattr(self.source, "shutdown"):
            self.source.shutdown()
        else:
            stop(self.source)

    @property
    def view(self) -> Any:
        """The nearest node towards the source that counts epochs; None if there is none."""
        return epoch_counter(self.source)

    def _begin_pass(self) -> None:
        # A node that reads its source several times in a pass moves the source's epoch, by as many
        # epochs as this rank's share has it: passes are counted here then.
        view = self.view
        cycles = self._started and view is not None and view.epoch != self.epoch
        self.source.reset(None)
        own = self.epoch + self._started
        self.epoch = own if cycles else self._source_epoch(own)
        self._clear()

    def _source_epoch(self, otherwise: int) -> int:
        return otherwise if self.view is None else int(self.view.epoch)

    def _clear(self) -> None:
        self._costs: dict[int, tuple[int, ...]] = {}
        self.window = Window(self.budget, self._costs, self.layout)
        self._buffered: dict[int, BufferedSample] = {}  # by key, in order of arrival
        self._refs: dict[int, Any] = {}  # their refs again: a state is taken at every step
        self._held_tokens = self._held_loss_tokens = 0  # sums over what is in the window
        self._age = 0
        self._arrived = self._arrived_digest = 0
        self._exhausted = self._was_exhausted = False
        self.interrupted = False
        self.num_overlong = 0
        self.drops = DropLog()
        self.filler = Filler(self.sample_refs)

    def _admit(self, item: Any) -> None:
        sample = item if isinstance(item, Sample) else self._measured(item)
        self._arrived += 1
        position = sample.view.position
        self._arrived_digest = (self._arrived_digest + digest_one(position)) & _MASK
        if isinstance(sample.data, Dropped):
            self.drops.add(sample.view, sample.data.reason, sample.data.detail)
        elif sample.length == 0:
            self.drops.add(sample.view, "empty")
        elif sample.length <= self._longest or self._keep_overlong(sample):
            self._add(self.sample_refs.buffer(sample))

    def _measured(self, item: Any) -> Sample:
        """An item of a source that yields no ``Sample``: it is known by its place in the pass."""
        view = View(self.epoch, self._arrived, self._arrived)
        if isinstance(item, Failed):
            raise item.error
        if item is None:
            item = Dropped("filtered")
        if isinstance(item, Dropped):
            return Sample(view, item, 0)  # type: ignore[arg-type]
        where = f"while measuring sample {self._arrived} of epoch {self.epoch}"
        return Sample(view, item, call_user_code(checked_length, self._length, item, where=where))

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

    def _add(self, buffered: BufferedSample) -> None:
        sample = buffered.sample
        self.filler.consider(buffered)
        key = make_key(self.budget.padded(sample.length), self._age)
        self._age += 1
        if self.budget.extra:
            self._costs[key] = costs_of(sample, self.budget)
        self._buffered[key], self._refs[key] = buffered, buffered.ref
        self._held_tokens += sample.length
        self._held_loss_tokens += buffered.loss_tokens
        self.window.add(key)

    def _checked(self, state: Any) -> tuple[WindowState, Any]:
        """A state that fits, and the state of the source in it."""
        known = check_window_state(state)
        kind = (PositionRefs if isinstance(known["held"], bytes) else ContentRefs).kind
        if kind != self.sample_refs.kind:
            raise StateError(
                f"state holds samples {kind}, this source saves them {self.sample_refs.kind}: "
                "load it with the kind of source that saved it"
            )
        source = known["source"]
        if isinstance(source, bytes):
            source = unpack_value(source, _SOURCE)
        if hasattr(self.source, "check_state"):
            self.source.check_state(source)
        return known, source

    def _restore(self, initial_state: Any) -> None:
        state, source = self._checked(initial_state)
        self._restore_source(source)
        buffered = self.sample_refs.restore(state["held"], "state 'held'")
        refs = None if state["filler"] is None else state["filler"][:]
        filler = Filler(self.sample_refs, refs, state["filler_length"])
        if self._rebuilding is None and refs is not None:
            filler.sample()  # damaged content is told of now, and costs nothing to unpack
        self.epoch = self._source_epoch(self.epoch)
        self._clear()
        self.put_back(buffered)
        check_sums(state, self._held_tokens, self._held_loss_tokens)
        self.filler = filler
        self.drops = DropLog.from_state(state["drops"])
        self._arrived, self.num_overlong = state["arrived"], state["overlong"]
        self._arrived_digest = state["arrived_digest"]
        self._was_exhausted = state["exhausted"]

    def _restore_source(self, state: Any) -> None:
        try:
            self.source.reset(state)
        except StateError:
            raise
        except Exception as error:  # of nodes that do not check what they are given
            raise StateError(f"the source did not accept its state: {error!r:.200}") from error


_SOURCE = "the state of the source"

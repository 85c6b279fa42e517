"""The loader's batches as optimizer steps, with counts and a state for each moment between two."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from hf_integration.data.goal import Goal
from hf_integration.data.pictures import ROOM
from hf_integration.data.steps import StepBatches, num_padded_tokens, step_batches
from hf_integration.errors import Refusal
from odb_nodes import OdbLoader, StateError, describe_state
from odb_nodes.types import OdbBatch
from titan_integration.data.totals import Totals


class Feed:
    """Yields the optimizer steps of one epoch per ``iter()``; ends with the run.

    A step is fetched one step ahead, so that the last one of the run is known as such while it is
    trained. ``state`` and ``totals`` describe what was *trained*: they move on at ``commit``, so a
    checkpoint that is taken within a step has the samples of that step before it.

    The Trainer gets nothing of this but ``__iter__``: it would put a loader with a length or
    ``set_epoch`` at places that it takes from wrong step counts.

    Args:
        loader: Of this rank.
        accumulation: Batches per optimizer step.
        goal: The end of the run.
    Attributes:
        state: Of the loader after the step trained last; None before the first one.
        totals: Counts up to there; of this rank where they differ between ranks.
        finished: Whether nothing is left to train.
        shapes: Distinct shapes of this rank's batches since the process started.
    """

    def __init__(self, loader: OdbLoader, *, accumulation: int, goal: Goal) -> None:
        self.loader, self.goal = loader, goal
        self.state: dict[str, Any] | None = None
        self.totals = Totals()
        self.finished = False
        self.shapes: set[Any] = set()
        self._accumulation = accumulation
        self._next: tuple[dict[str, Any], Totals] | None = None

    def __iter__(self) -> Iterator[StepBatches]:
        if self.finished:
            return
        with explained():  # a state that was loaded is held against dataset and settings here
            batches = iter(self.loader)
        group = list(islice(batches, self._accumulation))
        if not group:
            raise ValueError("train_dataset: every row was dropped, none could be trained on")
        while group and not self.finished:
            state = self.loader.state_dict()
            following = list(islice(batches, self._accumulation))
            if not following:
                state = self.loader.state_dict()  # of an epoch that has ended
            step = step_batches(group, self._accumulation)
            self._next = (state, self._counted(step, group, state, ended=not following))
            yield step
            group = following

    def commit(self) -> None:
        """The step fetched last is trained."""
        assert self._next is not None
        self.state, self.totals = self._next
        self._next = None
        self._note_end()

    def resume(self, state: dict[str, Any], totals: Totals) -> None:
        """Go on after a state of this rank, at the next ``iter()``."""
        with explained():
            self.loader.load_state_dict(state)
        self.state, self.totals = state, totals
        self._note_end()

    def current_totals(self) -> Totals:
        """``totals`` with what it takes from an epoch only when that ends."""
        if self.state is None:
            return self.totals
        progress = describe_state(self.state)
        unfinished = progress["epoch"] >= self.totals.epochs_done
        return self.totals.with_epoch(progress) if unfinished else self.totals

    def _note_end(self) -> None:
        assert self.state is not None
        self.finished = self.goal.reached(self.totals, describe_state(self.state))

    def _counted(
        self, step: StepBatches, group: list[OdbBatch], state: dict[str, Any], *, ended: bool
    ) -> Totals:
        """The totals with a step that is yet to be trained."""
        totals = replace(self.totals, dropped=dict(self.totals.dropped))
        for batch, info in zip(step.batches, step.infos, strict=False):
            totals.add(info, num_padded_tokens(batch, info))
            totals.room += 0 if info.idle else batch.get(ROOM, 0)
        for filler in step.batches[len(group) :]:
            totals.padded_tokens += num_padded_tokens(filler, None)
            totals.idle_steps += 1
        self.shapes |= {_shape(batch) for batch in step.batches}
        if ended:
            totals = totals.with_epoch(describe_state(state))
            totals.epochs_done = group[-1].info.epoch + 1
        return totals


def _shape(batch: Any) -> Any:
    return getattr(batch.get("input_ids"), "shape", None)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """A state that does not fit becomes a Refusal, with what can be done."""
    remedy = "undo the change, or begin anew in another output_dir"
    try:
        yield
    except StateError as error:
        raise Refusal(f"the checkpoint does not fit: {error}; {remedy}") from error

"""The steps of one agreed round: settled groups, their totals, and their place in a state."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.layout import Layout
from odb_nodes.errors import StateError
from odb_nodes.samples.buffered import BufferedSample, SampleRefs
from odb_nodes.state.cursor import NO_PACKED, digests
from odb_nodes.state.schema import PendingState, Refs
from odb_nodes.types import Sample, StepInfo

Int64s = npt.NDArray[np.int64]


def own_counts(steps: Sequence[Sequence[BufferedSample]], layout: Layout) -> Int64s:
    """This rank's samples, tokens, loss tokens and cost of every step, ``[T, 4]``."""
    rows = []
    for buffered in steps:
        lengths = [held.sample.length for held in buffered]
        loss_tokens = sum([held.loss_tokens for held in buffered])
        rows.append((len(lengths), sum(lengths), loss_tokens, layout.group_cost(lengths)))
    return np.array(rows, np.int64).reshape(len(rows), 4)


def step_digests(steps: Sequence[Sequence[BufferedSample]]) -> list[int]:
    """Digest of the positions of every step, length ``[T]``."""
    positions = np.array([h.sample.view.position for buffered in steps for h in buffered], np.int64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(digests(positions), dtype=np.uint64)])
    ends = np.cumsum([0] + [len(buffered) for buffered in steps])
    return [int(value) for value in sums[ends[1:]] - sums[ends[:-1]]]


class Round:
    """Steps that are agreed but maybe not delivered; ``at`` is the next to deliver.

    Args:
        steps: Samples per step, ``[T]`` lists; an empty one is IDLE.
        refs: What a state says of all these samples, in order: packed positions or contents.
        own: Samples, tokens, loss tokens and cost of every step on this rank, ``[T, 4]``.
        totals: Of all ranks, ``[T, 5]``: samples, tokens, loss tokens, cost, and the highest cost
            of a rank; ``[T, 3]`` where costs are not exchanged.
        room: What the layout and the budget say of a group.
    """

    def __init__(
        self,
        steps: list[list[BufferedSample]],
        refs: Refs,
        own: Int64s,
        totals: Int64s,
        room: "Room",
    ) -> None:
        self.steps = steps
        self._room = room
        self.own = own
        self.totals = totals
        self.at = 0
        self.digests = step_digests(steps)
        # Flat, so that the state of every step is a few slices of these.
        self._refs = refs
        self._sizes = [len(step) for step in steps]
        self._ends = np.cumsum([0] + self._sizes)
        self._width = totals.shape[1]
        self._totals_flat: list[int] = totals.ravel().tolist()
        self._own_flat: list[int] = own[:, 1:3].ravel().tolist()

    @property
    def left(self) -> int:
        """Steps not delivered yet."""
        return len(self.steps) - self.at

    def to_state(self) -> PendingState:
        """The steps not delivered yet, as plain values."""
        start, end = int(self._ends[self.at]), int(self._ends[-1])
        refs = self._refs
        if isinstance(refs, bytes):
            left: Refs = refs[8 * start : 8 * end] or NO_PACKED
        else:
            left = refs[start:end]
        return {
            "refs": left,
            "sizes": self._sizes[self.at :],
            "totals": self._totals_flat[self._width * self.at :],
            "own": self._own_flat[2 * self.at :],
        }

    def next_step(self, step: int, epoch: int) -> tuple[list[Sample], StepInfo]:
        """Samples of the next step to deliver, none if it is IDLE, and what it holds.

        Args:
            step: Steps before it in the epoch.
            epoch: Pass over the data.
        """
        samples = [held.sample for held in self.steps[self.at]]
        own, totals = self.own[self.at].tolist(), self.totals[self.at].tolist()
        info = StepInfo(
            step=step,
            epoch=epoch,
            num_samples=own[0],
            num_tokens=own[1],
            num_loss_tokens=own[2],
            total_num_samples=totals[0],
            total_num_tokens=totals[1],
            total_num_loss_tokens=totals[2],
            padded_tokens=self._room.size([sample.length for sample in samples]),
            idle=not samples,
            views=tuple(sample.view for sample in samples),
            cost=own[3],
            fill=own[1] / self._room.max_tokens,
            total_cost=totals[3] if self._width > 3 else own[3],
            slowest_over_mean=self._room.slowest_over_mean(totals),
        )
        return samples, info

    def pop(self) -> None:
        """Let go of the samples of the next step: it is delivered."""
        self.steps[self.at] = []
        self.at += 1

    def cut(self, steps: int) -> list[BufferedSample]:
        """Forget the steps from ``steps`` on; returns the samples they held."""
        lost = [held for step in self.steps[steps:] for held in step]
        del self.steps[steps:], self._sizes[steps:], self._totals_flat[self._width * steps :]
        del self._own_flat[2 * steps :]
        self._ends = self._ends[: steps + 1]
        return lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a step may hold, and how it is told.

    Attributes:
        layout: Of the groups.
        max_tokens: Of a group.
        world_size: Ranks.
        shares_cost: Whether the ranks tell each other what their groups cost.
    """

    layout: Layout
    max_tokens: int
    world_size: int
    shares_cost: bool

    @property
    def width(self) -> int:
        """Totals of a step."""
        return 5 if self.shares_cost else 3

    def size(self, lengths: Sequence[int]) -> int:
        """Tokens that a group takes before any rounding up."""
        return self.layout.size(lengths, TokenBudget(self.max_tokens))

    def slowest_over_mean(self, totals: Sequence[int]) -> float | None:
        """The highest cost of a rank over the mean, if it is known."""
        if not self.shares_cost or not totals[3]:
            return None
        return totals[4] * self.world_size / totals[3]


def empty_round(refs: Refs, room: Room) -> Round:
    """No steps: a new round must be agreed."""
    own, totals = np.zeros((0, 4), np.int64), np.zeros((0, room.width), np.int64)
    return Round([], refs, own, totals, room)


def round_from_state(pending: PendingState, sample_refs: SampleRefs, room: Room) -> Round:
    """The steps not delivered yet of a state, their samples found again.

    Raises:
        StateError: What the state says of them is damaged.
    """
    buffered = sample_refs.restore(pending["refs"], "state 'pending'")
    steps = split_by_sizes(buffered, pending["sizes"], "pending")
    own = own_counts(steps, room.layout)
    totals = totals_from_state(pending["totals"], len(steps))
    if totals.shape[1] < room.width:  # saved where costs were not exchanged: as if all had this
        totals = np.column_stack([totals, own[:, 3] * room.world_size, own[:, 3]])
    round_ = Round(steps, pending["refs"], own, totals[:, : room.width], room)
    if pending["own"] not in (None, round_.to_state()["own"]):
        raise StateError(
            "the samples of the state's pending steps have other lengths or loss tokens now: they "
            "must be of the same dataset, and the transform must be deterministic"
        )
    return round_


def split_by_sizes(items: Sequence[Any], sizes: Any, what: str) -> list[list[Any]]:
    """Cut a flat sequence into runs of the given sizes.

    Raises:
        StateError: The sizes are not non-negative integers that add up to its length.
    """
    counts = isinstance(sizes, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in sizes
    )
    if not counts or sum(sizes) != len(items):
        raise StateError(f"{what} sizes do not add up to the {len(items)} samples listed")
    ends = np.cumsum([0] + sizes)
    return [list(items[a:b]) for a, b in pairwise(ends)]


def totals_from_state(totals: Any, steps: int) -> Int64s:
    """The totals of a state's pending steps, ``[T, 3]`` or, with costs, ``[T, 5]``.

    Raises:
        StateError: Not so many non-negative integers per step.
    """
    ok = isinstance(totals, list) and len(totals) in (3 * steps, 5 * steps)
    if not ok or not all(isinstance(n, int) and 0 <= n < 1 << 62 for n in totals):
        raise StateError(
            f"state 'pending' totals must be 3 or 5 integers >= 0 for each of {steps} steps"
        )
    return np.array(totals, np.int64).reshape(steps, len(totals) // steps if steps else 3)

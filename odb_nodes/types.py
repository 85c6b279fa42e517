"""Records that travel through the pipeline: view, sample, aligned group, step info, batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

IGNORE_INDEX = -100  # the label value that PyTorch's cross entropy leaves out of the loss


class View(NamedTuple):
    """Identity of one occurrence of a sample.

    Attributes:
        epoch: Pass over the dataset, from 0.
        position: Place in the epoch's global order (all ranks), in ``[0, num_samples)``.
        index: Index into the dataset.
    """

    epoch: int
    position: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here


class Sample(NamedTuple):
    """A prepared sample.

    Attributes:
        view: Which sample this is.
        data: What the transform returned, e.g. ``{"input_ids": ..., "labels": ...}``.
        length: Cost in tokens, known only now.
    """

    view: View
    data: Mapping[str, Any]
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInfo:
    """What one aligned step holds, on this rank and summed over ranks.

    Attributes:
        step: Steps before this one in the epoch; equal on all ranks.
        epoch: Pass over the dataset.
        num_samples: Samples of this rank; 0 when idle.
        num_tokens: Real tokens of this rank; 0 when idle.
        num_loss_tokens: Tokens of this rank whose label is not -100.
        total_num_samples: ``num_samples`` summed over ranks.
        total_num_tokens: ``num_tokens`` summed over ranks.
        total_num_loss_tokens: ``num_loss_tokens`` summed over ranks.
        padded_tokens: What this rank's group takes of the budget in its layout: ``count * max
            length``, or the sum of packed documents; before any rounding up by the collate. 0 when
            idle.
        idle: The batch is a masked filler, here only to keep the ranks in step.
        views: Identities of the samples, in batch order; empty when idle.
        cost: Of this rank's group, in tokens: ``L + slope * L * L`` summed over its documents, see
            ``Cost``; padded rows cost what the longest does.
        fill: Real tokens of this rank over ``max_tokens``.
        total_cost: ``cost`` summed over ranks; where costs are not exchanged, this rank's own.
        slowest_over_mean: Highest cost of a rank over the mean of all, at least 1; None where costs
            are not exchanged (padded rows without a cost per pair, or ``totals=False``).
    """

    step: int
    epoch: int
    num_samples: int
    num_tokens: int
    num_loss_tokens: int
    total_num_samples: int
    total_num_tokens: int
    total_num_loss_tokens: int
    padded_tokens: int
    idle: bool
    views: tuple[View, ...]
    cost: int = 0
    fill: float = 0.0
    total_cost: int = 0
    slowest_over_mean: float | None = None


class AlignedGroup(NamedTuple):
    """The samples of one step on one rank, and what the step holds on all of them."""

    samples: Sequence[Sample]
    info: StepInfo


class OdbBatch(NamedTuple):
    """A collated step. A NamedTuple, so that torchdata's PinMemory pins its tensors."""

    tensors: Any
    info: StepInfo

"""The batches of one optimizer step, as the Trainer has to get them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from odb_nodes.types import IGNORE_INDEX, OdbBatch, StepInfo

_LABELS = ("labels", "shift_labels")


class StepBatches(NamedTuple):
    """Collated batches of one optimizer step of this rank.

    Attributes:
        batches: As many as there are accumulation steps; fillers at the end are masked copies.
        infos: Of those that are no fillers.
    """

    batches: list[Any]
    infos: list[StepInfo]


def step_batches(group: Sequence[OdbBatch], accumulation: int) -> StepBatches:
    """The step of a group of aligned batches: IDLE ones masked, a short group filled up.

    The Trainer steps the optimizer after ``accumulation`` batches only: what is left at the end of
    an epoch would leak into the next. Two batches and accumulation 4 give the two batches and two
    copies of the second whose labels are all -100; they add nothing to the gradient.
    """
    batches = [masked(batch.tensors) if batch.info.idle else batch.tensors for batch in group]
    fillers = [masked(batches[-1])] * (accumulation - len(batches))
    return StepBatches([*batches, *fillers], [batch.info for batch in group])


def masked(batch: Any) -> Any:
    """The batch with every label -100, also where the collator made labels from the tokens."""
    found = [key for key in _LABELS if isinstance(batch.get(key), torch.Tensor)]
    changed = {key: torch.full_like(batch[key], IGNORE_INDEX) for key in found}
    copy = type(batch)(dict(batch))
    copy.update(changed)
    return copy


def num_loss_tokens(batch: Mapping[str, Any], *, shifted: bool) -> int:
    """Labels of a collated batch that the model's loss sees.

    Args:
        batch: With "labels" ``[B, L]``, or the "shift_labels" of a padding-free collator.
        shifted: Whether the loss compares a token with the next label, so never sees the first.
    """
    if "shift_labels" in batch:
        labels = batch["shift_labels"]
    elif shifted:
        labels = batch["labels"][..., 1:]
    else:
        labels = batch["labels"]
    return int((labels != IGNORE_INDEX).sum())


def num_padded_tokens(batch: Mapping[str, Any], info: StepInfo | None) -> int:
    """Tokens of a collated batch, padding included."""
    ids = batch.get("input_ids")
    if isinstance(ids, torch.Tensor):
        return ids.numel()
    return info.padded_tokens if info is not None else 0

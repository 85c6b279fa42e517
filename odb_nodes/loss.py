"""Gradient accumulation: the batches of one optimizer step, and the exact weight of their loss."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from odb_nodes.types import OdbBatch


def optimizer_steps(batches: Iterable[OdbBatch], accumulation: int) -> Iterator[list[OdbBatch]]:
    """Lists of ``accumulation`` batches; the last of an epoch may be shorter, on all ranks alike.

    All batches of an optimizer step are fetched before the first is trained on, so that its total
    of loss tokens is known, and a state taken after the step holds exactly what was trained.

    Args:
        batches: A loader, or its iterator. With ``idle="skip"`` ranks may get unequal lists.
        accumulation: Batches an optimizer step, at least 1.
    Raises:
        ValueError: ``accumulation`` below 1.
    """
    if accumulation < 1:
        raise ValueError(f"accumulation must be at least 1, got {accumulation}")
    iterator = iter(batches)
    while group := list(islice(iterator, accumulation)):
        yield group


def sum_weight(batches: Sequence[OdbBatch], world_size: int) -> float:
    """Multiplier for the *summed* token loss of every batch of one optimizer step.

    The accumulated gradient is then that of the sum of the token losses of all batches and ranks,
    divided by the number of tokens that carry loss. With one batch this is ``token_weight``
    divided by the rank's number of loss tokens.

    Args:
        batches: The batches of the optimizer step on this rank.
        world_size: Number of data-parallel ranks where gradients are averaged over them (DDP); 1
            where they are summed.
    Raises:
        ValueError: ``world_size`` below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    return world_size / max(1, sum(batch.info.total_num_loss_tokens for batch in batches))

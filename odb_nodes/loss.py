"""The exact weight of a loss, for one batch or for the batches of one optimizer step."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from odb_nodes.arguments import integer
from odb_nodes.types import OdbBatch, StepInfo


class OptimizerStep(list[OdbBatch]):
    """The batches of one optimizer step on this rank.

    Attributes:
        state: The loader's state after the last of them; what to save once the step is trained.
        previous_state: That before the first of them; what to save while the step is trained. None
            where ``optimizer_steps`` was given an iterator, which has no state.
    """

    def __init__(self, batches: Iterable[OdbBatch], previous_state: Any, state: Any) -> None:
        super().__init__(batches)
        self.previous_state = previous_state
        self.state = state


def optimizer_steps(batches: Iterable[OdbBatch], accumulation: int) -> Iterator[OptimizerStep]:
    """Lists of ``accumulation`` batches; the last of an epoch may be shorter, on all ranks alike.

    All batches of an optimizer step are fetched before the first is trained on, so that its total
    of loss tokens is known. ``loader.state_dict()`` counts all of them as delivered; the states of
    an ``OptimizerStep`` say which of them to save before, and which after it is trained.

    Args:
        batches: A loader, or its iterator. With ``idle="skip"`` ranks may get unequal lists.
        accumulation: Batches per optimizer step, at least 1.
    Raises:
        ValueError: ``accumulation`` below 1.
    """
    accumulation = integer("accumulation", accumulation, least=1)
    iterator = iter(batches)
    take_state: Any = getattr(batches, "state_dict", lambda: None)
    state = take_state()
    while group := list(islice(iterator, accumulation)):
        previous, state = state, take_state()
        yield OptimizerStep(group, previous, state)


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
    world_size = integer("world_size", world_size, least=1)
    return world_size / max(1, sum(batch.info.total_num_loss_tokens for batch in batches))


def token_weight(info: StepInfo, world_size: int) -> float:
    """Multiplier for this rank's *mean* loss under an averaging gradient reduction (DDP).

    With it, the averaged gradient is the gradient of the global mean over the tokens that carry
    loss: ``world_size * num_loss_tokens / total_num_loss_tokens``. An idle rank gets 0; multiply
    its loss all the same, so that its backward pass runs (a mean over no token is NaN: use
    ``reduction="sum"`` divided by ``max(1, num_loss_tokens)``). For gradient accumulation use
    ``optimizer_steps`` and ``sum_weight``. Loss tokens are the labels other than -100 as the
    collate gets them: shift labels in the transform, not in the model.

    Args:
        info: The step's info.
        world_size: Number of data-parallel ranks.
    Raises:
        ValueError: ``world_size`` below 1.
    Source: arXiv 2606.19989, token-level loss rescaling; weighs by loss tokens, not by length.
    """
    world_size = integer("world_size", world_size, least=1)
    if info.total_num_loss_tokens == 0:
        return 0.0
    return world_size * info.num_loss_tokens / info.total_num_loss_tokens

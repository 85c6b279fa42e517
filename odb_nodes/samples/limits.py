"""What a token budget asks of samples: further costs, and warnings of limits that are void."""

import logging
from collections.abc import Iterable
from typing import Any

from odb_nodes.arguments import integer
from odb_nodes.batching.budget import TokenBudget
from odb_nodes.errors import SampleError
from odb_nodes.samples.user_code import call_user_code
from odb_nodes.types import Sample

logger = logging.getLogger(__name__)


def costs_of(sample: Sample, budget: TokenBudget) -> tuple[int, ...]:
    """The further costs of a sample, one per entry of ``budget.extra``.

    Raises:
        SampleError: A cost is not an integer, or negative.
        Exception: What the cost function raised.
    """
    costs = []
    for name, limit in budget.extra.items():
        where = f"while taking the {name!r} cost of dataset[{sample.view.index}]"
        cost: Any = call_user_code(limit.cost, sample.data, where=where)
        try:
            costs.append(integer(f"the cost {name!r}", cost, least=0))
        except ValueError as error:
            raise SampleError(f"{error}, of dataset[{sample.view.index}]") from None
    return tuple(costs)


def warn_of_void_limits(budget: TokenBudget, window: int) -> None:
    """Say that a limit can never bind."""
    most = budget.max_samples
    if most is not None and most > window:
        logger.warning(
            "max_samples=%d can never bind: a group is taken from a window of %d samples; use a "
            "larger window, or no max_samples",
            most,
            window,
        )


def warn_of_a_small_window(budget: TokenBudget, window: int, lengths: Iterable[int]) -> None:
    """Say, once a window is full, that lengths cannot be matched in it.

    Args:
        budget: Limits of a group.
        window: Samples buffered.
        lengths: Of the samples in it.
    """
    longest = max(map(budget.padded, lengths))
    if budget.max_samples is None and budget.most(longest) > window:
        logger.warning(
            "a window of %d samples fits into one group of %d tokens: batches hold what comes, and "
            "cannot be matched by length; use a larger window",
            window,
            budget.max_tokens,
        )


def warn_of_a_long_prefetch(prefetch: int, samples: int | None) -> None:
    """Say that more batches are read ahead than a rank has samples of an epoch.

    Args:
        prefetch: Batches.
        samples: Of this rank; None for a stream, which has no end.
    """
    if samples is not None and 0 < samples < prefetch:
        logger.warning(
            "prefetch=%d batches is more than this rank's %d samples of an epoch: all of them will "
            "be read before the first is trained on",
            prefetch,
            samples,
        )

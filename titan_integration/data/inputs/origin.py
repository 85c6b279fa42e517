"""Which source each token of a batch comes from, for counts and losses by source."""

from collections.abc import Sequence
from typing import Literal

import torch

from odb_nodes.types import IGNORE_INDEX

NO_SOURCE = -1


def source_map(
    sources: Sequence[int],
    positions: torch.Tensor,
    *,
    layout: Literal["padded", "packed"],
) -> torch.Tensor:
    """Number of the source of every token; -1 where no sample is.

    Two samples of sources 1 and 0, packed: positions ``[[0, 1, 2, 0, 1, 0, 1]]``, whose last two
    are padding, give ``[[1, 1, 1, 0, 0, -1, -1]]``.

    Args:
        sources: Of the samples of the batch, in their order; empty for an IDLE one.
        positions: Of the tokens in their samples, ``int64[B, L]``.
        layout: Padded: a row per sample; packed: one row of samples, then padding.
    Returns:
        ``int64[B, L]``.
    """
    if not sources:
        return torch.full_like(positions, NO_SOURCE)
    numbers = torch.tensor([*sources, NO_SOURCE])
    if layout == "padded":
        return numbers[:-1, None].expand_as(positions)
    sample = (positions == 0).cumsum(1) - 1
    return numbers[sample.clamp(max=len(sources))]


def count_by_source(sources: torch.Tensor, labels: torch.Tensor, num_sources: int) -> list[int]:
    """Tokens that carry loss, by source; both tensors are ``int64[B, L]``."""
    found = sources[(labels != IGNORE_INDEX) & (sources >= 0)]
    counts: list[int] = torch.bincount(found, minlength=num_sources).tolist()
    return counts

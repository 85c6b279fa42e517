"""Pictures end to end in one sequence: where each begins, and what is computed once per size."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from titan_integration.upstream import VarlenMetadata

Grid = tuple[int, int, int]  # frames, rows and columns of patches
Embeddings = tuple[torch.Tensor, torch.Tensor]


def grids_of(grid_thw: torch.Tensor) -> list[Grid]:
    """``int64[pictures, 3]`` on any device as numbers of this process."""
    return [(t, h, w) for t, h, w in grid_thw.tolist()]


def lengths_of(grids: Sequence[Grid]) -> list[int]:
    """Patches of each picture."""
    return [t * h * w for t, h, w in grids]


def segments(lengths: Sequence[int], total: int, device: torch.device) -> VarlenMetadata:
    """Attention within each of ``lengths`` patches; what is left of ``total`` is one more segment.

    Worked example: lengths 4 and 8 in a sequence of 16 begin at 0, 4 and, the tail, at 12.
    """
    tail = total - sum(lengths)
    assert tail >= 0, f"{sum(lengths)} patches do not fit into {total}"
    parts = [*lengths, tail] if tail else list(lengths)
    starts = torch.tensor([0, *accumulate(parts)], dtype=torch.int32, device=device)
    longest = max(parts)
    return VarlenMetadata(starts, starts, longest, longest)


def embeddings(
    grids: Sequence[Grid], total: int, compute: Callable[[Grid, int], Embeddings]
) -> Embeddings:
    """What is added to each patch and how it is rotated, ``[1, total, ...]``; zero in the tail.

    Args:
        grids: Of the pictures, in their order.
        total: Length of the sequence.
        compute: Both for one picture of ``n`` patches, ``[1, n, ...]``; asked once per size.
    """
    known = {grid: compute(grid, grid[0] * grid[1] * grid[2]) for grid in dict.fromkeys(grids)}
    learned, rotation = zip(*(known[grid] for grid in grids), strict=True)
    return _end_to_end(learned, total), _end_to_end(rotation, total)


def encoded(
    tower: Any, pixel_values: torch.Tensor, grid_thw: torch.Tensor, rotate: Any
) -> tuple[torch.Tensor, list[Grid]]:
    """All layers of a tower on ``[1, patches, patch size]``; and the grids of the pictures.

    Args:
        tower: With ``patch_embed``, ``layers`` and ``compute_position_embeddings``.
        pixel_values: Patches of all pictures, one after the other.
        grid_thw: ``int64[pictures, 3]``.
        rotate: Applies the rotation to queries and keys.
    """

    def of_one(grid: Grid, patches: int) -> Embeddings:
        found: Embeddings = tower.compute_position_embeddings([list(grid)], patches)
        return found

    grids, total = grids_of(grid_thw), pixel_values.shape[1]
    learned, rotation = embeddings(grids, total, of_one)
    x = tower.patch_embed(pixel_values) + learned
    pictures = segments(lengths_of(grids), total, x.device)
    for layer in tower.layers.values():
        x = layer(x, rope_cache=rotation, rope_apply=rotate, attention_mask=pictures)
    return x, grids


def split(x: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """``[1, at least sum(lengths), D]`` as one ``[n, D]`` per picture, without the tail."""
    return list(x[0, : sum(lengths)].split(list(lengths)))


def stacked(x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The same as ``[pictures, longest, D]``, zero where a picture is shorter.

    Torchtitan's models read the tower's output so. No layer runs on it.
    """
    return pad_sequence(split(x, lengths), batch_first=True)


def _end_to_end(parts: Sequence[torch.Tensor], total: int) -> torch.Tensor:
    tail = total - sum(part.shape[1] for part in parts)
    first = parts[0]
    return torch.cat([*parts, first.new_zeros(1, tail, *first.shape[2:])], dim=1)

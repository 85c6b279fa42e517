"""Positions of tokens by frame, row and column. Pure."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odb_nodes.errors import SampleError
from odb_nodes.vision.geometry import Grid

Integers = npt.NDArray[np.int64]


def grid_positions(
    is_picture: npt.NDArray[np.bool_], grids: Sequence[Grid], merge: int
) -> Integers:
    """Positions of one document.

    Texts count on in all three. A picture's tokens all begin at the position that comes next and
    add their row and column; what follows counts on after its longer side. A picture of 2 x 4
    patches, so of 1 x 2 tokens, between two words::

        is_picture  0  1  1  0
        frame       0  1  1  3
        row         0  1  1  3
        column      0  1  2  3

    Args:
        is_picture: ``bool[L]``, whether a token is one of a picture.
        grids: Of its pictures, in order.
        merge: Side of a token in patches.
    Returns:
        ``int64[L, 3]``.
    Raises:
        SampleError: The pictures have other numbers of tokens, or one is not in one piece.
    Source: ``get_rope_index`` of Qwen2-VL in transformers, for still pictures.
    """
    return restarted_grid_positions(np.arange(len(is_picture)), is_picture, grids, merge)


def restarted_grid_positions(
    positions: Integers, is_picture: npt.NDArray[np.bool_], grids: Sequence[Grid], merge: int
) -> Integers:
    """The same for documents one after the other.

    Args:
        positions: ``int64[L]``, token numbers that restart at 0 in each document.
        is_picture: ``bool[L]``.
        grids: Of all pictures, in order.
        merge: Side of a token in patches.
    """
    out = np.repeat(positions[:, None], 3, axis=1)
    if not grids:
        _check(is_picture, np.empty(0, np.int64), np.empty(0, np.int64))
        return out
    sides = np.asarray(grids, np.int64)[:, 1:] // merge
    sizes, frames = sides.prod(axis=1), np.asarray(grids, np.int64)[:, 0]
    places = np.flatnonzero(is_picture)
    sizes = sizes * frames
    starts = _check(is_picture, places, sizes)
    # A picture takes fewer positions than tokens; what comes after it in its document moves back.
    saved = np.zeros(len(positions) + 1, np.int64)
    saved[starts + sizes] = sizes - sides.max(axis=1)
    saved = np.cumsum(saved)[:-1]
    before = np.maximum.accumulate(np.where(positions == 0, np.arange(len(positions)), 0))
    out -= (saved - saved[before])[:, None]
    number = np.arange(len(places)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wide, area = np.repeat(sides[:, 1], sizes), np.repeat(sides.prod(axis=1), sizes)
    first = np.repeat(out[starts, 0], sizes)
    steps = np.stack([number // area, number % area // wide, number % wide], axis=1)
    out[places] = first[:, None] + steps
    return out


def _check(is_picture: npt.NDArray[np.bool_], places: Integers, sizes: Integers) -> Integers:
    """Where the pictures begin."""
    found, wanted = int(np.count_nonzero(is_picture)), int(sizes.sum())
    if found != wanted:
        raise SampleError(
            f"the pictures have {wanted} tokens, the text holds {found}: expand each placeholder "
            "to as many as Geometry.tokens says, and cut no sample within a picture"
        )
    ends = np.cumsum(sizes)
    starts: Integers = places[ends - sizes]
    last = places[ends - 1]
    if (last - starts != sizes - 1).any():
        raise SampleError("the tokens of a picture must stand in one piece")
    return starts

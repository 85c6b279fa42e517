"""A picture of batches as the model saw them: tiles in their rows, padding marked."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odb_nodes.vision import Geometry, Grid

if TYPE_CHECKING:
    from PIL.Image import Image

FILE_NAME = "odb_batches.png"
MOST_BATCHES, MOST_ROWS = 4, 6
_WIDTH, _ROW, _GAP, _TITLE = 1500, 120, 6, 26  # pixels
_TEXTS = ((199, 217, 240), (222, 232, 246))  # of documents, in turns
_PADDING, _INK = (235, 90, 90), (20, 20, 20)


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch on the CPU: ``int64[B, L]`` ids and positions, patches and grids."""

    tokens: np.ndarray
    positions: np.ndarray
    patches: np.ndarray
    grids: list[Grid]


class Sheet:
    """Keeps the first batches, and draws them.

    Args:
        geometry: Of the tower.
        image_id: Of the token that stands for a picture.
    """

    def __init__(self, geometry: Geometry, image_id: int) -> None:
        self._geometry = geometry
        self._image_id = image_id
        self._seen: list[Seen] = []

    def add(self, inputs: dict[str, Any]) -> None:
        """Keep a batch of the loader, unless there are enough."""
        if len(self._seen) < MOST_BATCHES:
            names = ("input", "positions", "patches")
            tokens, positions, patches = (inputs[name].cpu().numpy() for name in names)
            grids: list[Grid] = [(t, h, w) for t, h, w in inputs["grid_thw"].tolist()]
            self._seen.append(Seen(tokens.copy(), positions.copy(), patches.copy(), grids))

    def save(self, folder: str) -> Path | None:
        """Write to ``folder``; None if no batch was seen."""
        if not self._seen:
            return None
        from PIL import Image

        parts = [self._drawn(number, seen) for number, seen in enumerate(self._seen, 1)]
        sheet = Image.new("RGB", (_WIDTH, sum(part.height for part in parts)), (255, 255, 255))
        top = 0
        for part in parts:
            sheet.paste(part, (0, top))
            top += part.height
        path = Path(folder) / FILE_NAME
        new = path.with_name(f".{FILE_NAME}")
        sheet.save(new, format="PNG")
        os.replace(new, path)
        return path

    def _drawn(self, number: int, seen: Seen) -> "Image":
        from PIL import Image, ImageDraw

        rows = min(MOST_ROWS, len(seen.tokens))
        image = Image.new("RGB", (_WIDTH, _TITLE + rows * (_ROW + _GAP) + _GAP), (255, 255, 255))
        pen = ImageDraw.Draw(image)
        pen.text((4, 6), self._title(number, seen), fill=_INK)
        tiles, sizes = self._tiles(seen), map(self._geometry.tokens, seen.grids)
        for row in range(rows):
            top = _TITLE + row * (_ROW + _GAP)
            scale = _WIDTH / seen.tokens.shape[1]
            for i, (begin, end) in enumerate(documents(seen.positions[row])):
                box = (int(begin * scale), top, int(end * scale) - 1, top + _ROW - 1)
                if not seen.tokens[row, begin:end].any():
                    _hatch(pen, box)
                elif box[2] > box[0]:
                    pen.rectangle(box, fill=_TEXTS[i % 2])
            for begin, end in _runs(seen.tokens[row] == self._image_id, sizes):
                _paste(image, next(tiles), int(begin * scale), int(end * scale), top)
        return image

    def _title(self, number: int, seen: Seen) -> str:
        rows, length = seen.tokens.shape
        patches = sum(math.prod(grid) for grid in seen.grids)
        padding = sum(
            end - begin
            for tokens, positions in zip(seen.tokens, seen.positions, strict=True)
            for begin, end in documents(positions)
            if not tokens[begin:end].any()
        )
        more = f" (the first {MOST_ROWS} are shown)" if rows > MOST_ROWS else ""
        return (
            f"batch {number}: {rows} rows of {length} tokens{more}, padding "
            f"{padding / seen.tokens.size:.1%} (red); {len(seen.grids)} pictures, {patches} patches"
        )

    def _tiles(self, seen: Seen) -> Iterator["Image"]:
        """The pictures, put together from their patches."""
        from PIL import Image

        at = 0
        for grid in seen.grids:
            size = math.prod(grid)
            yield Image.fromarray(joined(seen.patches[at : at + size], grid, self._geometry))
            at += size


def joined(patches: np.ndarray, grid: Grid, geometry: Geometry) -> np.ndarray:
    """Patches of a picture as ``uint8[height, width, 3]``; undoes ``odb_nodes.vision``'s cut."""
    _, rows, columns = grid
    merge = 1 if geometry.order == "raster" else geometry.merge
    side = geometry.patch
    parts = patches.reshape(rows // merge, columns // merge, merge, merge, 3, side, side)
    height, width = geometry.pixels(grid)
    return parts.transpose(0, 2, 5, 1, 3, 6, 4).reshape(height, width, 3)


def documents(positions: np.ndarray) -> Iterator[tuple[int, int]]:
    """Begin and end of each document of a row, those of padding included."""
    return pairwise([*np.flatnonzero(positions == 0).tolist(), len(positions)])


def _runs(is_picture: np.ndarray, sizes: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of each picture's tokens in a row; takes as many sizes as there are."""
    places = np.flatnonzero(is_picture).tolist()
    at = 0
    while at < len(places):
        size = next(sizes)
        yield places[at], places[at] + size
        at += size


def _hatch(pen: Any, box: Sequence[int]) -> None:
    left, top, right, bottom = box
    if right <= left:
        return
    pen.rectangle(tuple(box), fill=(252, 228, 228))
    for x in range(left, right, 8):
        pen.line((x, bottom, min(right, x + 8), top), fill=_PADDING)


def _paste(image: "Image", tile: "Image", left: int, right: int, top: int) -> None:
    """The tile as large as its tokens' part of the row allows."""
    scale = min(max(1, right - left) / tile.width, _ROW / tile.height)
    size = (max(1, int(tile.width * scale)), max(1, int(tile.height * scale)))
    small = tile.resize(size)
    image.paste(small, (left + (right - left - size[0]) // 2, top + (_ROW - size[1]) // 2))

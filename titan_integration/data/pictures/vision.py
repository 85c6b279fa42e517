"""What a model's tower makes of a picture, and the tokens that stand for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odb_nodes.vision import Geometry, Picture
from titan_integration.data.pictures.problem import PictureProblem


@dataclass(frozen=True, kw_only=True, slots=True)
class Vision:
    """How a model takes pictures; part of what a cached check is of.

    Attributes:
        geometry: Patches and tokens of a picture.
        image_token: Stands for a picture in the text, once per token of it.
        video_token: Of films, which are refused.
        start_token: Before a picture, where the chat template does not say.
        end_token: After it.
        has_grid_positions: Whether positions are of frames, rows and columns.
        image_dir: What paths in rows are relative to; None is the folder of the row's file.
    """

    geometry: Geometry
    image_token: str
    video_token: str
    start_token: str
    end_token: str
    has_grid_positions: bool = False
    image_dir: str | None = None

    @property
    def word(self) -> str:
        """What stands for a picture before its tokens are counted."""
        return f"{self.start_token}{self.image_token}{self.end_token}"


def expanded(
    ids: np.ndarray,
    ranges: Sequence[tuple[int, int]],
    pictures: Sequence[Picture],
    image_id: int,
    geometry: Geometry,
) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """Ids with as many placeholders as each picture has tokens, and where ranges have moved to.

    Worked example: placeholder 9 in [1, 9, 2, 9, 3], pictures of 2 and 3 tokens, range (4, 5):
    [1, 9, 9, 2, 9, 9, 9, 3] and (7, 8).

    Raises:
        PictureProblem: There are not as many placeholders as pictures.
    """
    places = np.flatnonzero(ids == image_id)
    if len(places) != len(pictures):
        raise PictureProblem(
            "the token of a picture stands in words",
            f"the row has {len(pictures)} pictures and {len(places)} tokens that stand for one, of "
            "which there must be as many; take the token out of the words",
        )
    repeats = np.ones(len(ids), np.int64)
    repeats[places] = [geometry.tokens(picture.grid) for picture in pictures]
    ends = np.concatenate([[0], np.cumsum(repeats)])
    moved = tuple((int(ends[begin]), int(ends[end])) for begin, end in ranges)
    return np.repeat(ids, repeats), moved


def cut_before_picture(
    ids: np.ndarray, most: int, pictures: Sequence[Picture], vision: Vision, image_id: int
) -> tuple[int, int]:
    """Where to cut so that no picture is cut, ``most`` ids at most, and the pictures left.

    A picture is its placeholders and the tokens right before and after them.
    """
    places = np.flatnonzero(ids == image_id)
    at = 0
    for number, picture in enumerate(pictures):
        size = vision.geometry.tokens(picture.grid)
        begin, end = int(places[at]) - 1, int(places[at + size - 1]) + 2
        at += size
        if end > most:
            return min(most, max(0, begin)), number
    return most, len(pictures)

"""Samples with pictures: their tokens, length and patches."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from odb_nodes.errors import SampleError
from odb_nodes.vision.geometry import Geometry
from odb_nodes.vision.pictures import Picture

PICTURES = "pictures"  # the key of a sample's pictures, in the order of their tokens


def vision_length(sample: Mapping[str, Any]) -> int:
    """Tokens of a sample, and one more where it has no picture.

    That one is the room of the black picture that a batch of texts gets, see ``VisionCollate``:
    with it counted, the budget holds for whichever samples meet.

    Args:
        sample: With "input_ids", placeholders expanded, and "pictures".
    """
    return len(sample["input_ids"]) + (not sample.get(PICTURES))


def num_patches(sample: Mapping[str, Any]) -> int:
    """Patches of a sample's pictures, for ``TokenBudget(extra={"patches": Limit(...)})``."""
    return sum(math.prod(picture.grid) for picture in sample.get(PICTURES, ()))


def expand_pictures(
    columns: Mapping[str, Sequence[int] | npt.NDArray[Any]],
    pictures: Sequence[Picture],
    geometry: Geometry,
    image_id: int,
) -> dict[str, npt.NDArray[Any]]:
    """A sample's values per token, with each placeholder repeated for the tokens of its picture.

    Placeholder 9 in ``[1, 9, 2]`` and a picture of 3 tokens give ``[1, 9, 9, 9, 2]``.

    Args:
        columns: With "input_ids", and others of its length, as "labels".
        pictures: One per placeholder, in order.
        geometry: Of the tower.
        image_id: The placeholder's id.
    Raises:
        SampleError: There are not as many placeholders as pictures.
    """
    ids = np.asarray(columns["input_ids"])
    places = np.flatnonzero(ids == image_id)
    if len(places) != len(pictures):
        raise SampleError(
            f"the sample has {len(pictures)} pictures and {len(places)} placeholders "
            f"(input_ids of {image_id}), of which there must be as many"
        )
    repeats = np.ones(len(ids), np.int64)
    repeats[places] = [geometry.tokens(picture.grid) for picture in pictures]
    return {key: np.repeat(np.asarray(values), repeats) for key, values in columns.items()}

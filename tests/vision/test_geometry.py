"""Sizes to grids, tokens and patches, as Hugging Face's processors have them."""

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from odb_nodes.vision import Geometry, PictureError

QWEN2 = Geometry(patch=14, min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
QWEN3 = Geometry()


def random_sizes(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Heights and widths from 12 to 8,000 pixels, small ones as often as large ones."""
    sizes = np.exp(
        np.random.default_rng(seed).uniform(np.log(12), np.log(8000), (count, 2))
    ).astype(int)
    return [(int(height), int(width)) for height, width in sizes]


@pytest.mark.parametrize("geometry", [QWEN2, QWEN3], ids=["Qwen2.5-VL", "Qwen3-VL"])
def test_grids_are_those_of_smart_resize_but_where_it_rounds_a_side_to_0(
    geometry: Geometry,
) -> None:
    side, compared, theirs = geometry.side, 0, 0
    limits = {"min_pixels": geometry.min_pixels, "max_pixels": geometry.max_pixels}
    processor = Qwen2VLImageProcessorPil(
        patch_size=geometry.patch,
        size={"shortest_edge": geometry.min_pixels, "longest_edge": geometry.max_pixels},
    )
    for height, width in random_sizes(2400):
        if max(height, width) > 200 * min(height, width):
            with pytest.raises(PictureError, match="200 times"):
                geometry.grid(height, width)
            continue
        grid = geometry.grid(height, width)
        tall, wide = smart_resize(height, width, side, **limits)
        if grid[1:] == (tall // geometry.patch, wide // geometry.patch):
            compared += 1
            assert geometry.patches(grid) == processor.get_number_of_image_patches(height, width)
            assert geometry.tokens(grid) == geometry.patches(grid) // geometry.merge**2
        else:  # it takes a side of 0 for a picture of no area, and scales by the least
            assert round(min(height, width) / side) == 0, (height, width)
            theirs += 1
    assert compared >= 2000
    assert theirs < 200


def test_areas_are_within_the_limits_wherever_the_aspect_allows() -> None:
    for height, width in random_sizes(500, seed=1):
        if max(height, width) > 50 * min(height, width):
            continue
        tall, wide = QWEN3.pixels(QWEN3.grid(height, width))
        assert tall % QWEN3.side == wide % QWEN3.side == 0
        assert QWEN3.min_pixels <= tall * wide <= QWEN3.max_pixels


@pytest.mark.parametrize(
    ("height", "width", "reason"),
    [(10, 2001, "extreme aspect"), (2001, 10, "extreme aspect"), (0, 5, "empty")],
)
def test_sizes_that_make_no_picture_are_refused(height: int, width: int, reason: str) -> None:
    with pytest.raises(PictureError) as caught:
        QWEN3.grid(height, width)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "changes",
    [
        {"patch": 0},
        {"merge": -1},
        {"frames": 1.5},
        {"order": "rows"},
        {"min_pixels": 4096, "max_pixels": 1024},
        {"min_pixels": 1, "max_pixels": 1000},
    ],
)
def test_a_geometry_that_has_no_pictures_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(reversed(changes))):
        Geometry(**changes)  # type: ignore[arg-type]

"""A picture of a sample, and its patches as bytes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from odb_nodes.vision.errors import PictureError
from odb_nodes.vision.geometry import Geometry, Grid
from odb_nodes.vision.headers import open_picture, orientation_of, picture_size
from odb_nodes.vision.sources import Source, open_source, source_name

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = npt.NDArray[np.uint8]
_WHITE = (255, 255, 255, 255)
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that is decoded when its batch is made: what the window holds of it.

    Attributes:
        source: Where its bytes are; see ``open_source``.
        grid: ``Geometry.grid`` of its size.
    """

    source: Source
    grid: Grid


def read_picture(source: Source, geometry: Geometry, *, decode: bool = False) -> Picture:
    """A picture by its header.

    Args:
        source: Where its bytes are.
        geometry: Of the tower.
        decode: Decode it to find damage that the header does not show; see ``picture_size``.
    Raises:
        PictureError: It cannot be used.
    """
    height, width = picture_size(source, decode=decode)
    try:
        return Picture(source, geometry.grid(height, width))
    except PictureError as error:
        raise PictureError(error.reason, f"{source_name(source)}: {error}") from error


def patches_of(picture: Picture, geometry: Geometry) -> Bytes:
    """Decode, turn upright, scale and cut into patches.

    Transparent parts become white, palettes, gray and CMYK become RGB, 16 bits become 8.

    Args:
        picture: One of the grid that the geometry gives for its size.
        geometry: Of the tower.
    Returns:
        ``uint8[patches, 3 * patch * patch]``, in the geometry's order; a patch holds red, green and
        blue one after the other.
    Raises:
        PictureError: It cannot be decoded, or has another size than its header said.
    """
    name = source_name(picture.source)
    with open_source(picture.source) as file, open_picture(file, name) as image:
        upright = _upright(image)
        grid = geometry.grid(upright.height, upright.width)
        if grid != picture.grid:
            raise PictureError(
                "changed",
                f"it has {upright.height} x {upright.width} pixels now, so a grid of {grid}, but "
                f"{picture.grid} when its header was read",
            )
        height, width = geometry.pixels(grid)
        scaled = _as_rgb(upright).resize((width, height), _bicubic())
        return cut(np.asarray(scaled), geometry)


def cut(pixels: Bytes, geometry: Geometry) -> Bytes:
    """``uint8[height, width, 3]`` as patches, ``uint8[n, 3 * patch * patch]``.

    Sides must be multiples of a token's.
    """
    patch, merge = geometry.patch, geometry.merge
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    if geometry.order == "raster":
        merge = 1
    parts = pixels.reshape(rows // merge, merge, patch, columns // merge, merge, patch, 3)
    ordered = parts.transpose(0, 3, 1, 4, 6, 2, 5)  # tokens, patches in them, colors, pixels
    return ordered.reshape(rows * columns, geometry.patch_size)


def _upright(image: "Image") -> "Image":
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(orientation_of(image))
    image.load()
    return image if turn is None else image.transpose(turn)


def _as_rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and _is_sixteen_bits(image)):
        values = np.asarray(image).astype(np.float64) / 257
        return Image.fromarray(values.round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise PictureError(
            "number format", f"its pixels are numbers of mode {image.mode!r}; save it with 8 bits"
        )
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, _WHITE)
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _is_sixteen_bits(image: "Image") -> bool:
    extrema: Any = image.getextrema()  # of the one band that such a picture has
    return bool(extrema[0] >= 0 and extrema[1] < 1 << 16)


def _bicubic() -> Any:
    from PIL.Image import Resampling

    return Resampling.BICUBIC

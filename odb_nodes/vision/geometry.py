"""From the size of a picture to its patches and tokens. Pure."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from odb_nodes.arguments import choice, integer
from odb_nodes.vision.errors import PictureError

Grid = tuple[int, int, int]  # frames, rows and columns of patches
Order = Literal["merge", "raster"]
Color = tuple[float, float, float]  # of red, green and blue

MOST_ASPECT = 200  # the long side over the short one, as Qwen's processors have it


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """What a vision tower makes of a picture; the defaults are Qwen3-VL's.

    A picture is scaled, nearly keeping its aspect, to sides that are multiples of a token's and to
    an area within the limits. It is then cut into patches, of which ``merge * merge`` make a token.
    A picture of 480 x 640 pixels (height x width)::

        geometry = Geometry()
        grid = geometry.grid(480, 640)  # (1, 30, 40): sides of 480 and 640 pixels
        geometry.patches(grid)          # 1200
        geometry.tokens(grid)           # 300

    Attributes:
        patch: Side of a patch in pixels.
        merge: Side of a token in patches.
        frames: Frames of a patch; a picture fills all of them.
        min_pixels: Least area of a scaled picture.
        max_pixels: Largest area of a scaled picture.
        order: How patches follow each other: "merge", token by token (Qwen), or "raster", row by
            row.
        mean: Subtracted from values in [0, 1].
        std: What they are then divided by.
    Raises:
        ValueError: A value out of range.
    Source: ``smart_resize`` of Qwen2-VL; differs where that gives no token, see ``grid``.
    """

    patch: int = 16
    merge: int = 2
    frames: int = 2
    min_pixels: int = 65_536
    max_pixels: int = 16_777_216
    order: Order = "merge"
    mean: Color = (0.5, 0.5, 0.5)
    std: Color = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        for name in ("patch", "merge", "frames", "min_pixels", "max_pixels"):
            integer(name, getattr(self, name), least=1)
        choice("order", self.order, get_args(Order))
        least = max(self.min_pixels, self.side**2)
        if self.max_pixels < least:
            raise ValueError(
                f"max_pixels must be at least min_pixels and the area of a token, {least}, "
                f"got {self.max_pixels}"
            )

    @property
    def side(self) -> int:
        """Side of a token in pixels."""
        return self.patch * self.merge

    @property
    def patch_size(self) -> int:
        """Values of a patch of one frame: three colors of each pixel."""
        return 3 * self.patch**2

    def grid(self, height: int, width: int) -> Grid:
        """Frames, rows and columns of patches of a picture.

        A side is at least that of a token. Hugging Face's processors round it to 0 where it is
        below half of that, and then take the picture for one of too small an area.

        Args:
            height: In pixels, upright.
            width: In pixels.
        Raises:
            PictureError: One side is more than 200 times the other, or a side is not positive.
        """
        if min(height, width) < 1:
            raise PictureError("empty", f"it has {height} x {width} pixels")
        if max(height, width) > MOST_ASPECT * min(height, width):
            raise PictureError(
                "extreme aspect",
                f"its sides are {height} x {width} pixels, of which one may be at most "
                f"{MOST_ASPECT} times the other; cut it into several",
            )
        tall, wide = self._sides(height, width)
        return 1, tall // self.patch, wide // self.patch

    def tokens(self, grid: Grid) -> int:
        """Tokens of a picture."""
        return math.prod(grid) // self.merge**2

    def patches(self, grid: Grid) -> int:
        """Patches of a picture."""
        return math.prod(grid)

    def pixels(self, grid: Grid) -> tuple[int, int]:
        """Height and width that a picture is scaled to."""
        return grid[1] * self.patch, grid[2] * self.patch

    def _sides(self, height: int, width: int) -> tuple[int, int]:
        side = self.side
        tall, wide = (max(1, round(length / side)) * side for length in (height, width))
        if tall * wide > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            tall, wide = (
                max(1, math.floor(length / shrink / side)) * side for length in (height, width)
            )
        elif tall * wide < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            tall, wide = (math.ceil(length * grow / side) * side for length in (height, width))
        return tall, wide

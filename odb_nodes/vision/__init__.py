"""Pictures of samples: sizes and tokens from headers, pixels only when a group is collated.

``geometry`` and ``positions`` are pure, ``sources``, ``headers`` and ``pictures`` import Pillow
when a file is read, ``pixels`` and ``collate`` know torch. May import the collates and what is
below them; no node imports this.
"""

from odb_nodes.vision.collate import VisionCollate
from odb_nodes.vision.errors import PictureError
from odb_nodes.vision.expand import expand_pictures, num_patches, vision_length
from odb_nodes.vision.geometry import Geometry, Grid
from odb_nodes.vision.headers import picture_size
from odb_nodes.vision.pictures import Picture, patches_of, read_picture
from odb_nodes.vision.pixels import to_pixel_values
from odb_nodes.vision.positions import grid_positions, restarted_grid_positions

__all__ = [
    "Geometry",
    "Grid",
    "Picture",
    "PictureError",
    "VisionCollate",
    "expand_pictures",
    "grid_positions",
    "num_patches",
    "patches_of",
    "picture_size",
    "read_picture",
    "restarted_grid_positions",
    "to_pixel_values",
    "vision_length",
]

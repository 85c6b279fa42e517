"""Pictures for tests, as files and as bytes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from odb_nodes.vision import Geometry

SMALL = Geometry(min_pixels=32 * 32, max_pixels=160 * 160)  # 1 to 25 tokens
IMAGE_ID = 90


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    """Random colors, in blocks that survive scaling and JPEG."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    pixels = blocks.repeat(8, axis=0).repeat(8, axis=1)
    return Image.fromarray(pixels[:height, :width].copy())


def as_bytes(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def saved(folder: Path, height: int, width: int, seed: int = 0, kind: str = "jpeg") -> Path:
    """The path of a picture."""
    path = folder / f"{seed}_{height}x{width}.{kind}"
    noise(height, width, seed).save(path)
    return path

"""Files damaged in every way: each row is trained on or counted, and no rank is left waiting."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odb_nodes import PackCollate, describe_state, odb_loader
from odb_nodes.testing import InProcessWorld
from odb_nodes.vision import (
    PictureError,
    VisionCollate,
    expand_pictures,
    picture_size,
    read_picture,
    vision_length,
)
from tests.vision.drawn import IMAGE_ID, SMALL, as_bytes, noise

NUM_FILES = 500
KINDS: dict[str, dict[str, Any]] = {
    "JPEG": {},
    "PNG": {},
    "WEBP": {},
    "GIF": {},
    "BMP": {},
    "TIFF": {"compression": "tiff_lzw"},
    "AVIF": {},
    "JPEG2000": {},
}


def damage(data: bytes, random: np.random.Generator) -> bytes:
    """Bytes flipped, cut off, left out, put in, zeroed or shuffled; or left as they are."""
    mutated, size = bytearray(data), len(data)
    at, length = int(random.integers(0, size)), int(random.integers(1, 64))
    kind = random.integers(0, 8)
    if kind == 0:
        for place in random.integers(0, size, 8):
            mutated[place] ^= 1 << int(random.integers(0, 8))
    elif kind == 1:
        return data[:at]
    elif kind == 2:
        del mutated[at : at + length]
    elif kind == 3:
        mutated[at:at] = random.bytes(length)
    elif kind == 4:
        mutated[at : at + length] = bytes(len(mutated[at : at + length]))
    elif kind == 5:
        for place in random.integers(0, min(64, size), 3):  # headers, above all
            mutated[place] = int(random.integers(0, 256))
    elif kind == 6:
        mutated[at:] = random.permutation(np.frombuffer(data[at:], np.uint8)).tobytes()
    return bytes(mutated)


def damaged_files() -> list[bytes]:
    random = np.random.default_rng(1)
    kinds = list(KINDS)
    found = []
    for i in range(NUM_FILES):
        kind = kinds[i % len(kinds)]
        height, width = (int(side) for side in random.integers(20, 90, 2))
        found.append(damage(as_bytes(noise(height, width, i), kind, **KINDS[kind]), random))
    return found


def encode(data: bytes) -> dict[str, Any]:
    picture = read_picture(data, SMALL, decode=True)
    ids = np.array([1, IMAGE_ID, 2, 3])
    return {
        **expand_pictures({"input_ids": ids}, [picture], SMALL, IMAGE_ID),
        "pictures": [picture],
    }


@pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged files
@pytest.mark.timeout(120)
def test_each_damaged_file_is_trained_on_or_counted_on_both_ranks() -> None:
    files = damaged_files()
    vision = VisionCollate(PackCollate(), SMALL, IMAGE_ID, threads=2)

    def work(rank: int, transport: Any) -> tuple[list[int], dict[str, int]]:
        with odb_loader(
            files,
            encode,
            token_budget=200,
            layout="packed",
            window=32,
            length=vision_length,
            collate=vision,
            filler=vision.idle,
            on_error="skip",
            transport=transport,
        ) as loader:
            indices = [view.index for batch in loader for view in batch.info.views]
            return indices, describe_state(loader.state_dict())["dropped"]

    ranks = InProcessWorld(2).run(work)
    trained = [index for indices, _ in ranks for index in indices]
    dropped = Counter[str]()
    for _, counts in ranks:
        dropped.update(counts)
    assert len(trained) == len(set(trained))
    assert len(trained) + dropped["error"] == dropped.total() + len(trained) == NUM_FILES
    assert len(trained) > 100
    assert dropped["error"] > 100


def error_of(path: Path) -> PictureError | None:
    try:
        picture_size(path)
    except PictureError as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_header_is_a_picture_error_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    reasons = Counter[str]()
    for data in damaged_files():
        path.write_bytes(data)
        error = error_of(path)
        if error is not None:
            assert str(error).startswith(str(path))
            assert "\n" not in str(error)
            reasons[error.reason] += 1
    assert reasons["truncated"] > 10
    assert reasons["not an image"] > 10

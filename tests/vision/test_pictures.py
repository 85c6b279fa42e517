"""Headers, damage and pixels of pictures in every form in which they come."""

import io
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from odb_nodes.vision import (
    Geometry,
    Picture,
    PictureError,
    patches_of,
    picture_size,
    read_picture,
    to_pixel_values,
)
from tests.vision.drawn import SMALL, as_bytes, noise

CLIP = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
QWEN2 = Geometry(patch=14, min_pixels=56 * 56, max_pixels=28 * 28 * 64, **CLIP)  # type: ignore[arg-type]
KINDS = {
    "JPEG": {},
    "PNG": {},
    "WEBP": {"lossless": True},
    "BMP": {},
    "GIF": {},
    "TIFF": {},
    "PPM": {},
    "JPEG2000": {},
    "AVIF": {},
}


class Somewhere:
    """Bytes that are read when they are needed."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_bytes(self) -> bytes:
        return self.data

    def __str__(self) -> str:
        return "picture 1 of row 5"


def values_of(source: Any, geometry: Geometry = SMALL) -> np.ndarray:
    return patches_of(read_picture(source, geometry), geometry)


def mean_color(source: Any) -> list[int]:
    """Of the whole picture."""
    patches = values_of(source).reshape(-1, 3, SMALL.patch**2)
    return [round(value) for value in patches.mean(axis=(0, 2))]


# What a picture may be


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_every_format_are_read_by_their_header_and_decoded(kind: str) -> None:
    data = as_bytes(noise(70, 100), kind, **KINDS[kind])
    assert picture_size(data) == (70, 100)
    grid = SMALL.grid(70, 100)
    assert read_picture(data, SMALL) == Picture(data, grid)
    assert values_of(data).shape == (SMALL.patches(grid), SMALL.patch_size)


def test_a_picture_may_be_a_path_bytes_a_column_of_datasets_or_something_that_reads(
    tmp_path: Path,
) -> None:
    data = as_bytes(noise(40, 60))
    path = tmp_path / "drawn.png"
    path.write_bytes(data)
    sources = [
        path,
        str(path),
        data,
        bytearray(data),
        {"bytes": data, "path": "x.png"},
        {"bytes": None, "path": str(path)},
        Somewhere(data),
    ]
    found = [values_of(source) for source in sources]
    assert all(np.array_equal(values, found[0]) for values in found)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_are_turned_as_their_exif_says(kind: str, orientation: int) -> None:
    image = noise(64, 96)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"quality": 95} if kind == "JPEG" else {}
    data = as_bytes(image, kind, exif=exif, **options)
    wanted = (96, 64) if orientation >= 5 else (64, 96)
    assert picture_size(data) == wanted
    with Image.open(io.BytesIO(data)) as again:
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(again)
    assert np.array_equal(values_of(data), values_of(as_bytes(upright.convert("RGB"))))


def test_transparent_parts_are_white() -> None:
    clear = (0, 0, 0, 0)
    assert mean_color(as_bytes(Image.new("RGBA", (64, 64), clear))) == [255, 255, 255]
    half = Image.new("LA", (64, 64), (0, 128))
    assert mean_color(as_bytes(half)) == [127, 127, 127]
    palette = Image.new("P", (64, 64), 1)
    palette.putpalette([0, 0, 0, 200, 10, 10])
    assert mean_color(as_bytes(palette)) == [200, 10, 10]
    assert mean_color(as_bytes(palette, transparency=1)) == [255, 255, 255]
    keyed = Image.new("RGB", (64, 64), (9, 8, 7))
    assert mean_color(as_bytes(keyed, transparency=(9, 8, 7))) == [255, 255, 255]


def test_gray_cmyk_and_sixteen_bits_become_rgb_of_eight() -> None:
    assert mean_color(as_bytes(Image.new("L", (64, 64), 77))) == [77, 77, 77]
    assert mean_color(as_bytes(Image.new("1", (64, 64), 1))) == [255, 255, 255]
    assert mean_color(as_bytes(Image.new("CMYK", (64, 64), (0, 255, 255, 0)), "TIFF")) == [
        255,
        0,
        0,
    ]
    deep = Image.fromarray(np.full((64, 64), 128 * 257, np.uint16))
    assert mean_color(as_bytes(deep)) == [128, 128, 128]
    assert mean_color(as_bytes(deep, "TIFF")) == [128, 128, 128]
    with pytest.raises(PictureError) as caught:
        values_of(as_bytes(Image.fromarray(np.ones((64, 64), np.float32)), "TIFF"))
    assert caught.value.reason == "number format"


# What it may not be


def bomb() -> bytes:
    """A PNG of 67 bytes whose header says 40,000 x 40,000 pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"")), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def animated(kind: str) -> bytes:
    frames = [noise(32, 32, seed) for seed in range(3)]
    return as_bytes(frames[0], kind, save_all=True, append_images=frames[1:])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a file that is not there": (lambda: "nowhere/at_all.png", "missing"),
    "a folder": (lambda: "/", "unreadable"),
    "neither bytes nor a path": (lambda: {"bytes": None, "path": None}, "missing"),
    "a number": (lambda: 5, "not a picture"),
    "an address": (lambda: "https://example.org/a.png", "remote"),
    "an empty file": (lambda: b"", "empty"),
    "a text": (lambda: b"no picture at all", "not an image"),
    "a film": (lambda: b"\0\0\0\x18ftypmp42" + bytes(100), "not an image"),
    "a drawing that would start a program": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0", "not an image"),
    "a decompression bomb": (bomb, "too large"),
    "an animated GIF": (lambda: animated("GIF"), "animation"),
    "an animated WebP": (lambda: animated("WEBP"), "animation"),
    "an animated PNG": (lambda: animated("PNG"), "animation"),
    "a TIFF of several pages": (lambda: animated("TIFF"), "animation"),
    "a stripe": (lambda: as_bytes(noise(4, 900)), "extreme aspect"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_picture_is_refused_by_its_header_in_one_line(what: str) -> None:
    make, reason = REFUSED[what]
    with pytest.raises(PictureError) as caught:
        read_picture(make(), SMALL)
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_pictures_of_more_pixels_than_pillow_warns_of_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = as_bytes(Image.new("1", (90, 70)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 70 - 1)
    with pytest.raises(PictureError, match="more than 6299 pixels"):
        picture_size(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 70)
    assert picture_size(data) == (70, 90)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("part", [0.5, 0.9, 0.99])
def test_a_file_that_was_cut_off_is_found_without_being_asked_to_decode(
    kind: str, part: float
) -> None:
    data = as_bytes(noise(200, 300), kind)
    with pytest.raises(PictureError):
        picture_size(data[: int(len(data) * part)])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_a_whole_file_with_something_behind_its_end_is_taken(kind: str) -> None:
    data = as_bytes(noise(64, 64), kind)
    assert picture_size(data + b"\0" * 7) == (64, 64)
    assert picture_size(data + b"camera maker's notes" * 10) == (64, 64)


def test_damage_within_a_file_is_found_where_it_is_decoded() -> None:
    data = bytearray(as_bytes(noise(100, 100)))
    data[len(data) // 2] ^= 0xFF
    assert picture_size(bytes(data)) == (100, 100)
    with pytest.raises(PictureError, match=r"a picture of .* bytes: the picture is"):
        picture_size(bytes(data), decode=True)
    with pytest.raises(PictureError):
        values_of(bytes(data))


def test_a_file_that_changed_since_its_header_was_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "swapped.png"
    noise(64, 64).save(path)
    picture = read_picture(path, SMALL)
    noise(64, 128).save(path)
    with pytest.raises(PictureError, match=r"swapped.png: .*when its header was read") as caught:
        patches_of(picture, SMALL)
    assert caught.value.reason == "changed"


def test_errors_name_the_picture_and_travel_between_processes() -> None:
    with pytest.raises(PictureError, match=r"^picture 1 of row 5: ") as caught:
        read_picture(Somewhere(b"nothing"), SMALL)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.reason, str(again)) == (caught.value.reason, str(caught.value))


def test_a_header_is_read_without_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def decoded(*_: Any) -> None:
        raise AssertionError("the picture was decoded")

    for kind in ("jpeg", "png", "gif", "bmp"):
        noise(300, 400).save(tmp_path / f"drawn.{kind}")
        monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
        assert picture_size(tmp_path / f"drawn.{kind}") == (300, 400)
        monkeypatch.undo()


# Pixels


def of_hugging_face(image: Image.Image, geometry: Geometry) -> tuple[torch.Tensor, torch.Tensor]:
    processor = Qwen2VLImageProcessorPil(
        patch_size=geometry.patch,
        merge_size=geometry.merge,
        temporal_patch_size=geometry.frames,
        image_mean=geometry.mean,
        image_std=geometry.std,
        size={"shortest_edge": geometry.min_pixels, "longest_edge": geometry.max_pixels},
    )
    made = processor([image], return_tensors="pt")
    return made["pixel_values"], made["image_grid_thw"]


@pytest.mark.parametrize("geometry", [QWEN2, SMALL], ids=["Qwen2.5-VL", "Qwen3-VL"])
def test_pixel_values_are_hugging_faces_bit_for_bit(geometry: Geometry) -> None:
    random = np.random.default_rng(3)
    for seed in range(20):
        height, width = (int(side) for side in random.integers(30, 500, 2))
        image = noise(height, width, seed).convert("L" if seed % 7 == 6 else "RGB")
        wanted, grid = of_hugging_face(image, geometry)
        picture = read_picture(as_bytes(image), geometry)
        found = to_pixel_values(torch.from_numpy(patches_of(picture, geometry)), geometry)
        assert list(picture.grid) == grid[0].tolist()
        assert torch.equal(found, wanted)


def test_every_byte_has_the_value_that_hugging_face_gives_it() -> None:
    colors = np.arange(256, dtype=np.uint8).repeat(16 * 16 * 3).reshape(256, -1)
    for geometry in (Geometry(), Geometry(**CLIP)):  # type: ignore[arg-type]
        found = to_pixel_values(torch.from_numpy(colors), geometry, "cpu")
        scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
        for color in range(3):
            mean, std = np.float32(geometry.mean[color]), np.float32(geometry.std[color])
            wanted = (scaled - mean) / std
            values = found.view(256, 3, geometry.frames, -1)[:, color]
            assert np.array_equal(values[:, 0, 0].numpy(), wanted)
            assert (values == values[:, :1, :1]).all()


def test_patches_row_by_row_are_those_token_by_token_in_another_order() -> None:
    data = as_bytes(noise(96, 128))
    by_row = Geometry(min_pixels=1024, max_pixels=1 << 20, order="raster")
    rows, columns = read_picture(data, by_row).grid[1:]
    raster = values_of(data, by_row).reshape(rows // 2, 2, columns // 2, 2, -1)
    tokens = values_of(data, Geometry(min_pixels=1024, max_pixels=1 << 20))
    assert np.array_equal(raster.transpose(0, 2, 1, 3, 4).reshape(tokens.shape), tokens)

"""What a picture's header says, without decoding it; and whether its file is whole."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from odb_nodes.vision.errors import PictureError
from odb_nodes.vision.sources import Source, open_source, source_name

if TYPE_CHECKING:
    from PIL.Image import Image

# Raster formats that Pillow itself decodes; others would start programs (EPS) or hold no picture.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
_ORIENTATION = 0x0112  # EXIF tag
_SIDEWAYS = (5, 6, 7, 8)
_TAIL = 64  # bytes, in which a whole file ends
_ENDS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82", "GIF": b";"}


def picture_size(source: Source, *, decode: bool = False) -> tuple[int, int]:
    """Height and width of a picture as it is seen, its EXIF orientation applied.

    Reads the header and, to find a file that was cut off, its end. A file that does not end as
    its format says is decoded to be sure.

    Args:
        source: See ``open_source``.
        decode: Decode all of it, which finds every damage, and takes a thousand times as long.
    Raises:
        PictureError: It is missing, no picture, cut off, an animation, or larger than
            ``PIL.Image.MAX_IMAGE_PIXELS``.
    """
    with open_source(source) as file, open_picture(file, source_name(source)) as image:
        if decode or not _ends_well(file, image.format or ""):
            image.load()
        return upright_size(image)


@contextmanager
def open_picture(file: IO[bytes], name: str) -> Iterator["Image"]:
    """A picture of which the header is read; what is wrong with it is a ``PictureError``.

    So is whatever Pillow raises inside the ``with``: on damaged files it raises many things.
    """
    from PIL import Image, UnidentifiedImageError

    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        with Image.open(file, formats=formats) as image:
            _check(image)
            yield image
    except PictureError as error:
        raise PictureError(error.reason, f"{name}: {error}") from error
    except UnidentifiedImageError as error:
        raise PictureError(*_unidentified(file, name)) from error
    except Image.DecompressionBombError as error:
        raise PictureError("too large", f"{name}: {_too_large()}") from error
    except MemoryError:
        raise
    except Exception as error:
        reason = "truncated" if "truncated" in str(error) else "damaged"
        raise PictureError(reason, f"{name}: the picture is {reason}: {error!r:.200}") from error


def upright_size(image: "Image") -> tuple[int, int]:
    """Height and width with the orientation applied."""
    width, height = image.size
    return (width, height) if orientation_of(image) in _SIDEWAYS else (height, width)


def orientation_of(image: "Image") -> int:
    """EXIF orientation, 1 to 8, as the header has it; 1 where it is said nowhere."""
    if image.format == "TIFF" or "exif" not in image.info:
        return 1  # Pillow turns a TIFF itself; a PNG would be decoded to look behind its pixels
    try:
        found: Any = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF says nothing
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _check(image: "Image") -> None:
    from PIL import Image

    most = Image.MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > most:
        raise PictureError("too large", _too_large())
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise PictureError(
            "animation", "it is an animation or has several pages; save one of them as a picture"
        )


def _too_large() -> str:
    from PIL import Image

    return (
        f"it has more than {Image.MAX_IMAGE_PIXELS} pixels, which may be a decompression bomb; "
        "scale it down, or raise PIL.Image.MAX_IMAGE_PIXELS"
    )


def _unidentified(file: IO[bytes], name: str) -> tuple[str, str]:
    """Reason and message for what no format knows."""
    if file.seek(0, io.SEEK_END) == 0:
        return "empty", f"{name}: the file is empty"
    known = ", ".join(FORMATS)
    return "not an image", f"{name}: not a picture that can be read ({known}), or damaged"


def _ends_well(file: IO[bytes], kind: str) -> bool:
    """Whether a file ends as its format says; False where the format does not say."""
    place = file.tell()
    try:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        file.seek(0)
        head = file.read(12)
    finally:
        file.seek(place)
    if kind in _ENDS:
        return tail.rstrip(b"\0").endswith(_ENDS[kind])
    if kind == "WEBP":
        return int.from_bytes(head[4:8], "little") + 8 <= size
    return kind == "BMP" and 0 < int.from_bytes(head[2:6], "little") <= size

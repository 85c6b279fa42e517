"""What a row calls its pictures -> where their bytes are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from titan_integration.data.pictures.problem import PictureProblem
from titan_integration.data.pictures.sources import Embedded, Rows, Slice, Source, embedded


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row comes from.

    Attributes:
        rows: Its table.
        index: Its number there.
        folder: Of the file that it was read from; None of a dataset that has none.
    """

    rows: Rows
    index: int
    folder: Path | None


class PlacedRow(dict[str, Any]):
    """A row that knows its place."""

    place: Place | None = None


def place_of(row: Any) -> Place | None:
    """The place of a row; None of one that was made elsewhere."""
    return getattr(row, "place", None)


def source_of(reference: Any, row: Any, image_dir: Path | None) -> Source:
    """Where the bytes of a reference are.

    Args:
        reference: A path, ``file:`` or data URL, bytes, or an object with one of these under
            ``bytes``, ``url``, ``path`` or ``image_url``.
        row: That it is part of.
        image_dir: What paths are relative to; None is the folder of the row's file.

    Raises:
        PictureProblem: It is on the network, is no file, or is nothing of the kind.
    """
    value = _value(reference)
    if isinstance(value, Slice):
        return value
    if isinstance(value, bytes) or (isinstance(value, str) and value.startswith("data:")):
        return _embedded(value, row)
    if not isinstance(value, str) or not value:
        raise PictureProblem(
            "a picture has no path, URL or bytes",
            f"a picture must be a path, a URL or bytes, got {type(value).__name__}",
        )
    return _file(value, row, image_dir)


def _value(reference: Any) -> Any:
    """``{"image_url": {"url": "a.png"}}`` is ``"a.png"``."""
    while isinstance(reference, dict):
        keys = ("bytes", "url", "path", "image_url", "image", "value", "data")
        reference = next((reference[k] for k in keys if reference.get(k) is not None), None)
    return reference


def _embedded(value: bytes | str, row: Any) -> Source:
    place = place_of(row)
    if place is None:
        raise PictureProblem(
            "a picture's bytes are in a row that has no number",
            "bytes of pictures can be read from tables only, and these rows have no numbers; "
            "name the pictures by their paths",
        )
    number = next(i for i, found in enumerate(embedded(row)) if found is value)
    return Embedded(place.rows, place.index, number)


def _file(name: str, row: Any, image_dir: Path | None) -> Path:
    scheme = urlsplit(name).scheme.lower()
    if scheme == "file":
        name = unquote(urlsplit(name).path)
    elif len(scheme) > 1 and "://" in name:
        raise PictureProblem(
            "a picture is on the network",
            f"a picture must be a file here, got {name[:120]!r}; download it and give its path",
        )
    place = place_of(row)
    folder = image_dir if image_dir is not None else (None if place is None else place.folder)
    path = Path(name) if folder is None else folder / name
    if not path.is_file():
        raise PictureProblem(
            "a picture is missing",
            f"there is no picture {path}; paths are relative to the row's file, or to "
            "--data.image_dir",
        )
    return path

"""Where the bytes of a picture are: small objects that read them when they are decoded."""

import base64
import binascii
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, unquote_to_bytes

_DATA_URL = "data:"


class Rows(Protocol):
    """What of a table a source needs."""

    def __getitem__(self, index: int, /) -> Any:
        """A row as plain values."""
        ...

    def where(self, index: int, /) -> str:
        """Its place for a message."""
        ...


class Source(Protocol):
    """Bytes of a picture, as ``pathlib.Path`` gives them."""

    def read_bytes(self) -> bytes:
        """All of them; raises OSError or ValueError."""
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes in the middle of a file: a picture in a tar archive.

    Args:
        path: The file.
        offset: Of the first byte.
        size: In bytes.
        name: For messages.
    """

    path: Path
    offset: int
    size: int
    name: str

    def read_bytes(self) -> bytes:
        with self.path.open("rb") as file:
            return os.pread(file.fileno(), self.size, self.offset)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Embedded:
    """Bytes, or a data URL, inside a row, which is read again when they are needed.

    Args:
        rows: The table.
        index: The row in it.
        number: Of the value among the row's embedded ones, in the order of :func:`embedded`.
    """

    rows: Rows
    index: int
    number: int

    def read_bytes(self) -> bytes:
        value = list(embedded(self.rows[self.index]))[self.number]
        return from_data_url(value) if isinstance(value, str) else value

    def __str__(self) -> str:
        return f"picture {self.number + 1} of {self.rows.where(self.index)}"


def embedded(value: Any) -> Iterator[bytes | str]:
    """Bytes and data URLs in a row, in order."""
    if isinstance(value, bytes) or (isinstance(value, str) and value.startswith(_DATA_URL)):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from embedded(item)
    elif isinstance(value, list):
        for item in value:
            yield from embedded(item)


def from_data_url(url: str) -> bytes:
    """The content of ``data:image/png;base64,...``; raises ValueError on others."""
    head, comma, body = url.partition(",")
    if not comma:
        raise ValueError("a data URL has no comma")
    if not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(unquote(body), validate=True)
    except binascii.Error as error:
        raise ValueError("a data URL is not base64") from error

"""Compressed files: unpacked once into the cache, since rows are read in random order."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from titan_integration.data.sources.cache import progress
from titan_integration.data.sources.files import File
from titan_integration.errors import UserError

_CHUNK = 1 << 20
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """A format of compression, known by its first bytes."""

    name: str
    magic: bytes
    open: Callable[[Any], Any]


COMPRESSIONS = (
    Compression(name="gzip", magic=b"\x1f\x8b", open=lambda raw: gzip.GzipFile(fileobj=raw)),
    Compression(name="bzip2", magic=b"BZh", open=bz2.BZ2File),
    Compression(name="xz", magic=b"\xfd7zXZ\x00", open=lzma.LZMAFile),
    Compression(
        name="zstandard",
        magic=b"\x28\xb5\x2f\xfd",
        open=lambda raw: zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True),
    ),
)


def compression_of(head: bytes) -> Compression | None:
    """The compression that a file's first bytes speak of."""
    return next((kind for kind in COMPRESSIONS if head.startswith(kind.magic)), None)


def unpack(file: File, compression: Compression) -> File:
    """The file with its content unpacked in the cache.

    Raises:
        UserError: The content is damaged or ends early; or the cache cannot hold it.
    """

    def make(path: Path) -> None:
        with (
            progress(f"unpacking {file.given}", file.size) as shown,
            file.path.open("rb") as raw,
            path.open("wb") as out,
            compression.open(raw) as content,
        ):
            while block := content.read(_CHUNK):
                out.write(block)
                shown.to(raw.tell())

    try:
        return file.unpacked(file.cache.made_from(file.path, "unpacked", make))
    except _BROKEN as error:
        raise UserError(
            f"{file.given} is damaged or was cut short ({compression.name}: {error}); "
            "copy it here again"
        ) from error

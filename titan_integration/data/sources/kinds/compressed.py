"""Compressed files: unpacked once into the cache, since rows are read in random order."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from titan_integration.data.sources.cache import progress
from titan_integration.data.sources.files import File
from titan_integration.errors import UserError

_CHUNK = 1 << 20
# What the libraries raise on content that is damaged or cut short.
BROKEN = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """A format of compression, known by its first bytes.

    Attributes:
        name: For messages.
        magic: First bytes of a file.
        blocks: ``file -> its content block by block``; raises one of ``BROKEN``.
    """

    name: str
    magic: bytes
    blocks: Callable[[BinaryIO], Iterator[bytes]]


def _by_file(opened: Callable[[BinaryIO], Any]) -> Callable[[BinaryIO], Iterator[bytes]]:
    def blocks(raw: BinaryIO) -> Iterator[bytes]:
        with opened(raw) as content:
            while block := content.read(_CHUNK):
                yield block

    return blocks


def _zstandard(raw: BinaryIO) -> Iterator[bytes]:
    """Frame by frame; unlike the library's own reader it notices a last frame that is cut."""
    frame = None
    while block := raw.read(_CHUNK):
        while block:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(block)
            block = frame.unused_data
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the last frame is cut")


COMPRESSIONS = (
    Compression(
        name="gzip", magic=b"\x1f\x8b", blocks=_by_file(lambda raw: gzip.GzipFile(fileobj=raw))
    ),
    Compression(name="bzip2", magic=b"BZh", blocks=_by_file(bz2.BZ2File)),
    Compression(name="xz", magic=b"\xfd7zXZ\x00", blocks=_by_file(lzma.LZMAFile)),
    Compression(name="zstandard", magic=b"\x28\xb5\x2f\xfd", blocks=_zstandard),
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
        ):
            try:
                for block in compression.blocks(raw):
                    out.write(block)
                    shown.to(raw.tell())
            except BROKEN as error:
                raise UserError(
                    f"{file.given} is damaged or was cut short ({compression.name}: {error}); "
                    "copy it here again"
                ) from error

    return file.unpacked(file.cache.made_from(file.path, "unpacked", make))

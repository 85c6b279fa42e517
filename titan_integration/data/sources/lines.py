"""Tables of byte spans in a text file: JSON by line or by value, and plain text by line."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from titan_integration.data.sources.cache import CacheError, progress
from titan_integration.data.sources.files import BOM, File, FileTable
from titan_integration.data.sources.table import check_index
from titan_integration.errors import UserError

logger = logging.getLogger(__name__)
Spans = npt.NDArray[np.int64]  # (rows, 2): first byte, bytes
_BLOCK = 4 << 20
_SPACE = 32  # no byte of a blank line is above it


@dataclass(kw_only=True)
class SpanTable(FileTable):
    """Rows that are spans of a file's bytes. Memory: 16 bytes per row, on disk where possible.

    Args:
        spans: First byte and number of bytes of each row, ``[rows, 2]``.
        read: ``bytes -> row``; a ValueError of it says what is wrong with the row.
        by_line: No row has a newline in it.
    """

    spans: Spans
    read: Callable[[bytes], Any]
    by_line: bool
    _fd: int | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int, /) -> Any:
        offset, size = self.spans[check_index(index, len(self))].tolist()
        try:
            return self.read(self._bytes(offset, size))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.where(index)} {_reason(error)}") from error

    def where(self, index: int, /) -> str:
        """``file:line``.

        The lines are counted now, from what lies between the rows if that is enough, else by
        reading the file up to there.
        """
        offset = int(self.spans[check_index(index, len(self)), 0])
        if self.by_line:
            return f"{self.file.given}:{index + 1 + self._blank_lines_before(index)}"
        return f"{self.file.given}:{line_at(self.file.path, offset)}"

    def _blank_lines_before(self, index: int) -> int:
        """Rows are a line each: what else there is lies in gaps of more than a newline."""
        starts = self.spans[: index + 1, 0]
        ends = np.concatenate([[-1], starts[:-1] + self.spans[:index, 1]])  # of the row before
        blank = 0
        with self.file.path.open("rb") as raw:
            for at in np.flatnonzero(starts - ends > 1):
                raw.seek(int(ends[at]) + 1)
                blank += raw.read(int(starts[at] - ends[at]) - 1).count(b"\n")
        return blank

    def _bytes(self, offset: int, size: int) -> bytes:
        if self._fd is None:
            self._fd = os.open(self.file.path, os.O_RDONLY)
        self.file.check_size(self._fd)
        return os.pread(self._fd, size, offset)  # no shared file position: safe in threads

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": None}  # a worker process opens the file itself

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def open_spans(
    file: File,
    kind: str,
    find: Callable[[BinaryIO, File], Iterator[Spans]],
    read: Callable[[bytes], Any],
    *,
    by_line: bool,
) -> SpanTable:
    """A table of what ``find`` finds, which is looked up if it was found before.

    Where the cache cannot be written, what is found is kept in memory.
    """

    def make(path: Path) -> None:
        with path.open("wb") as out, file.path.open("rb") as raw:
            for spans in find(raw, file):
                spans.astype("<i8").tofile(out)

    try:
        found = file.cache.made_from(file.path, kind, make)
    except CacheError as error:
        logger.warning("keeping the index of %s in memory: %s", file.given, error)
        with file.path.open("rb") as raw:
            spans = np.concatenate([np.empty((0, 2), np.int64), *find(raw, file)])
    else:
        empty = not found.stat().st_size
        spans = np.empty(0, "<i8") if empty else np.memmap(found, "<i8", "r")
    return SpanTable(file=file, spans=spans.reshape(-1, 2), read=read, by_line=by_line)


def find_lines(raw: BinaryIO, file: File) -> Iterator[Spans]:
    """Spans of the lines that are not blank, without their newline byte, block by block.

    Only the byte ``\\n`` ends a line: JSON strings may hold Unicode's line separators.
    """
    start, seen = 0, 0  # first byte of the open line, and its largest byte so far
    if raw.read(len(BOM)) == BOM:
        start = len(BOM)
    raw.seek(start)
    offset = start
    with progress(f"indexing {file.given}", file.size) as shown:
        while block := raw.read(_BLOCK):
            data = np.frombuffer(block, np.uint8)
            ends = np.flatnonzero(data == ord("\n")) + offset
            if not len(ends):
                seen = max(seen, int(data.max()))
            else:
                starts = np.concatenate([[start], ends[:-1] + 1])
                inside = np.maximum(starts - offset, 0)
                largest = np.maximum.reduceat(data[: ends[-1] + 1 - offset], inside)
                largest[0] = max(int(largest[0]), seen)
                kept = largest > _SPACE
                yield np.stack([starts, ends - starts], axis=1)[kept]
                start = int(ends[-1]) + 1
                seen = int(data[start - offset :].max(initial=0))
            offset += len(block)
            shown.to(offset)
    if seen > _SPACE:
        yield np.array([[start, offset - start]], np.int64)


def line_at(path: Path, offset: int) -> int:
    """Number of the line, from 1, that the byte at ``offset`` is in."""
    lines = 1
    with path.open("rb") as file:
        while offset > 0 and (block := file.read(min(_BLOCK, offset))):
            lines += block.count(b"\n")
            offset -= len(block)
    return lines


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text; convert the file, e.g. with iconv -t UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deep"
    return f"cannot be read: {error}"

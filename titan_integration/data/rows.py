"""Rows of JSON and JSONL files by index: byte offsets in memory, the rows themselves on disk."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from titan_integration.data.sources.fingerprint import fingerprint_files
from titan_integration.errors import UserError

_BOM = b"\xef\xbb\xbf"
_JSON_SPACE = " \t\r\n"


class RowFile:
    """One file's rows. A JSONL line ends at a newline byte only; blank lines are no rows.

    A ``.json`` file holds one list of rows, or lines as in JSONL. Memory: 24 bytes a row.

    Args:
        path: The file; ``.json`` may hold a list, any other suffix is read as JSONL.
        max_rows: Stop after that many rows.

    Raises:
        UserError: The file cannot be read, or is neither a JSON list nor JSON lines.
    """

    def __init__(self, path: str | Path, max_rows: int | None = None) -> None:
        self.path = Path(path)
        try:
            spans: Iterable[tuple[int, int, int]] | None = None
            if self.path.suffix == ".json":
                spans = self._list_spans()
            if spans is None:
                spans = self._line_spans(max_rows)
            numbers = np.fromiter(chain.from_iterable(islice(spans, max_rows)), np.int64)
        except OSError as error:
            raise UserError(f"cannot read data file {path}: {error.strerror}") from error
        self._spans = numbers.reshape(-1, 3)  # (rows, 3): byte offset, bytes, place
        self._fd: int | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, row: int) -> Any:
        """The parsed row. Raises UserError, naming file and line, when it is not JSON."""
        offset, size, _ = self._spans[row].tolist()
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDONLY)
        raw = os.pread(self._fd, size, offset)  # no shared file position: safe in threads
        try:
            return json.loads(raw)
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8"
            raise UserError(f"{self.where(row)} is not JSON: {reason}") from error

    def where(self, row: int) -> str:
        """The row's place for a message: ``file:line`` (of a list: of its first line)."""
        return f"{self.path}:{int(self._spans[row, 2])}"

    def _line_spans(self, max_rows: int | None) -> Iterator[tuple[int, int, int]]:
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                skip = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
                if line[skip:].strip():
                    yield offset + skip, len(line) - skip, number
                offset += len(line)

    def _list_spans(self) -> list[tuple[int, int, int]] | None:
        """Spans of a list's elements; None where the file is not one JSON list."""
        raw = self.path.read_bytes()
        try:
            text = raw.decode("utf-8-sig")
            return list(_elements(text, len(_BOM) if raw.startswith(_BOM) else 0))
        except ValueError:
            return None  # perhaps JSON lines; if not, reading the lines says where it breaks

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": None}  # a worker process opens the file itself


class Rows(Sequence[Any]):
    """The rows of several files, one after the other. Raises UserError as :class:`RowFile`."""

    def __init__(self, paths: Sequence[str], max_rows: int | None = None) -> None:
        self._files: list[RowFile] = []
        self._ends: list[int] = []
        for path in paths:
            left = None if max_rows is None else max_rows - len(self)
            file = RowFile(path, left)
            self._files.append(file)
            self._ends.append(len(self) + len(file))

    @property
    def files(self) -> list[str]:
        """The files, as they were named."""
        return [str(file.path) for file in self._files]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        file, row = self._locate(index)
        return file[row]

    def fingerprint(self) -> str:
        """Digest of the files; see ``Table``."""
        return fingerprint_files(file.path for file in self._files)

    def where(self, index: int) -> str:
        """``file:line`` of a row, for messages."""
        file, row = self._locate(index)
        return file.where(row)

    def _locate(self, index: int) -> tuple[RowFile, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"row must be in [0, {len(self)}), got {index}")
        which = int(np.searchsorted(self._ends, index, side="right"))
        start = self._ends[which - 1] if which else 0
        return self._files[which], index - start


def _elements(text: str, start_byte: int) -> Iterator[tuple[int, int, int]]:
    """(byte offset, bytes, line) of each element of the JSON list that ``text`` holds."""
    decode = json.JSONDecoder().raw_decode
    at = _expect(text, 0, "[")
    byte, line, counted = start_byte, 1, 0
    closed = _skip_space(text, at)
    if text[closed : closed + 1] == "]":
        at = closed
    while text[at : at + 1] != "]":
        start = _skip_space(text, at)
        _, end = decode(text, start)
        gap, row = text[counted:start], text[start:end].encode()
        byte += len(gap.encode())
        line += gap.count("\n")
        yield byte, len(row), line
        byte, line, counted = byte + len(row), line + row.count(b"\n"), end
        at = _skip_space(text, end)
        if text[at : at + 1] != "]":
            at = _expect(text, at, ",")
    if text[at + 1 :].strip(_JSON_SPACE):
        raise ValueError("text after the list")


def _expect(text: str, at: int, char: str) -> int:
    at = _skip_space(text, at)
    if text[at : at + 1] != char:
        raise ValueError(f"expected {char!r}")
    return at + 1


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _JSON_SPACE:
        at += 1
    return at

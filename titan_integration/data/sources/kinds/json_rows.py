"""JSON in a file of any name: a value per line, a list of rows, ``{"data": [...]}``, one object."""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from titan_integration.data.sources.cache import progress
from titan_integration.data.sources.files import HEAD, File
from titan_integration.data.sources.kind import Kind, Options
from titan_integration.data.sources.kinds.json_scan import Scanner
from titan_integration.data.sources.lines import Spans, find_lines, open_spans
from titan_integration.data.sources.table import Table

SUFFIXES = (".json", ".jsonl", ".ndjson")
WRAPPERS = ("data", "rows")  # keys that a whole list of rows is found under
_TURN_KEYS = ({"role", "content"}, {"from", "value"})
_AT_ONCE = 4096
# An object, or a list of objects, lists or texts: no template, and no text in brackets.
_OPENING = re.compile(rb'\s*(\{\s*["}]|\[\s*[\[{"\]])')


def is_json(file: File, head: bytes) -> bool:
    """The first value is an object or a list; or the name says JSON, and an error should too."""
    suffixes = {suffix.lower() for suffix in file.given.suffixes[-2:]}
    return bool(_OPENING.match(head)) or bool(suffixes & set(SUFFIXES))


def is_lines(file: File, head: bytes) -> bool:
    """Whether each line is a row, by the first lines; what else is JSON is read value by value.

    A first line that is a value, with another line after it, speaks for lines; so does a first
    line that opens an object and is broken, if the second one is a whole value.
    """
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(head) == HEAD:
        lines = lines[:-1]  # the last one may be cut
    if len(lines) < 2:
        return not lines and len(head) < HEAD
    first = lines[0].lstrip()
    return _is_value(first) or (first[:1] != b"[" and _is_value(lines[1], (dict, list)))


def _is_value(line: bytes, kinds: type | tuple[type, ...] = object) -> bool:
    try:
        return isinstance(json.loads(line), kinds)
    except (ValueError, RecursionError):
        return False


def open_lines(file: File, options: Options) -> Table:
    """A row per line that is not blank."""
    return open_spans(file, "lines", find_lines, json.loads, by_line=True)


def open_values(file: File, options: Options) -> Table:
    """A row per element of the one list, or per value of the file."""
    return open_spans(file, "values", find_values, json.loads, by_line=False)


def find_values(raw: BinaryIO, file: File) -> Iterator[Spans]:
    """Spans of the rows of a file that is not JSON lines; memory: independent of the file.

    Raises:
        UserError: The file is not JSON; with its line.
    """
    scanner = Scanner(raw, str(file.given))
    with progress(f"indexing {file.given}", file.size) as shown:
        found: list[tuple[int, int]] = []
        for span in _rows(scanner):
            found.append(span)
            if len(found) == _AT_ONCE:
                yield np.array(found, np.int64)
                found.clear()
                shown.to(scanner.byte)
        yield np.array(found, np.int64).reshape(-1, 2)


def _rows(scanner: Scanner) -> Iterator[tuple[int, int]]:
    """A list of rows or an object around it; else every value of the file is a row."""
    opening, start = scanner.peek(), scanner.byte
    if opening == "[":
        element = scanner.ahead_of_list()
        if not _is_turn(element):
            yield from scanner.elements()
            scanner.expect_end("the list")
            return
    elif opening == "{" and scanner.enter_list_under(WRAPPERS):
        yield from scanner.elements()
        scanner.leave_object()
        scanner.expect_end("the object")
        return
    scanner.rewind(start)
    while scanner.peek():
        yield scanner.value()[:2]


def _is_turn(value: Any) -> bool:
    """A list of turns is one conversation: a row, and no list of rows."""
    return isinstance(value, dict) and any(keys <= value.keys() for keys in _TURN_KEYS)


LINES = Kind(name="JSON lines", matches=lambda f, head: is_json(f, head) and is_lines(f, head),
             open=open_lines)  # fmt: skip
VALUES = Kind(name="JSON", matches=is_json, open=open_values)

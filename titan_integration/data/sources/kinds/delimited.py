"""Comma- or tab-separated values with a header line; every cell is text."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from titan_integration.data.sources.files import File
from titan_integration.data.sources.kind import Kind, Options
from titan_integration.data.sources.kinds.arrow import converted
from titan_integration.data.sources.table import Table
from titan_integration.errors import UserError

_BLOCK = 16 << 20  # bytes read at once; no row may be longer
_DELIMITERS = {".csv": ",;", ".tsv": "\t", ".tab": "\t"}
# Columns that hold lists: in a cell they are written as JSON.
_LISTS = {
    "messages",
    "conversations",
    "tools",
    "chosen",
    "rejected",
    "history",
    "input_ids",
    "labels",
    "images",
}


def open_delimited(file: File, options: Options) -> Table:
    """A row per record: ``{column: text}``; cells of list columns are read as JSON."""
    delimiter, names = _header(file)

    def read(path: Path) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, float]]]:
        reader = arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK, use_threads=False),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string())
            ),
        )
        return reader.schema, (
            (batch, (i + 1) * _BLOCK / max(1, file.size)) for i, batch in enumerate(reader)
        )

    return converted(file, read, fix=_with_lists)


def _header(file: File) -> tuple[str, list[str]]:
    """The delimiter, and the column names of the first line."""
    line = file.head().partition(b"\n")[0].decode("utf-8", "replace").strip("\r")
    suffix = _suffix(file)
    delimiter = max(_DELIMITERS.get(suffix, ",\t;"), key=line.count)
    names = next(csv.reader([line], delimiter=delimiter), [])
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{file.given}:1 must name each column once, got {twice!r} twice")
    return delimiter, names


def _with_lists(row: dict[str, Any]) -> dict[str, Any]:
    return {key: _read_list(key, cell) for key, cell in row.items()}


def _read_list(key: str, cell: str) -> Any:
    if key not in _LISTS or not cell.lstrip().startswith(("[", "{")):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell  # the reader of rows says what it expects there


def _suffix(file: File) -> str:
    found = (suffix.lower() for suffix in reversed(file.given.suffixes[-2:]))
    return next((suffix for suffix in found if suffix in _DELIMITERS), "")


DELIMITED = Kind(
    name="CSV or TSV", matches=lambda file, head: bool(_suffix(file)), open=open_delimited
)

"""All kinds of files, in the order in which they are tried."""

import os
import stat
from pathlib import Path

from titan_integration.data.sources.cache import Cache
from titan_integration.data.sources.files import File
from titan_integration.data.sources.kind import Kind, Options
from titan_integration.data.sources.kinds import arrow, delimited, json_rows, tar, text
from titan_integration.data.sources.kinds.compressed import compression_of, unpack
from titan_integration.data.sources.table import Table
from titan_integration.errors import UserError

KINDS: tuple[Kind, ...] = (
    tar.TAR,
    arrow.PARQUET,
    arrow.ARROW_FILE,
    arrow.ARROW_STREAM,
    json_rows.LINES,
    json_rows.VALUES,
    delimited.DELIMITED,
    text.TEXT,
)
# What people give by mistake, by first bytes, and what to do about it.
_REFUSED = (
    (b"PK\x03\x04", "is a zip archive (or a spreadsheet): unpack it, or save it as .csv"),
    (b"SQLite format 3", "is an SQLite database: export its rows as .jsonl or .csv"),
    (b"\xff\xfe", "is UTF-16 text: convert it, e.g. with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is UTF-16 text: convert it, e.g. with iconv -f UTF-16 -t UTF-8"),
    (b"\x89HDF", "is an HDF5 file: export its rows as .jsonl or .parquet"),
    (b"%PDF", "is a PDF: extract its text"),
    (b"version https://git-lfs", "is a Git LFS pointer, not the file: run git lfs pull"),
)


class UnknownKindError(UserError):
    """A file that no kind matches."""


def open_file(path: Path, options: Options, cache: Cache) -> Table:
    """The rows of one file, whatever its kind.

    Raises:
        UserError: It cannot be read, is of no known kind, or is damaged.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"{path} is not a regular file; a pipe needs --data.streaming")
        return _open(File.at(path, cache), options)
    except OSError as error:
        raise UserError(f"cannot read data file {path}: {error.strerror or error}") from error


def _open(file: File, options: Options) -> Table:
    head = file.head()
    compression = compression_of(head)
    while compression is not None:
        file = unpack(file, compression)
        head = file.head()
        compression = compression_of(head)
    for magic, what in _REFUSED:
        if head.startswith(magic):
            raise UserError(f"{file.given} {what}")
    kind = next((kind for kind in KINDS if kind.matches(file, head)), None)
    if kind is None:
        raise UnknownKindError(_unknown(file, head))
    return kind.open(file, options)


def _unknown(file: File, head: bytes) -> str:
    if not head:
        return f"{file.given} is empty"
    start = "".join(
        char for char in head[:40].decode("latin-1").split("\n")[0] if " " <= char < "\x7f"
    )
    return (
        f"cannot tell what {file.given} is, which begins with {start!r}: rows may be JSON, parquet "
        "or Arrow under any name, .csv, .tsv or .txt, each of them compressed or not"
    )

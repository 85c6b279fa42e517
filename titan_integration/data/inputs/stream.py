"""Rows that are read once, in order: JSON lines of pipes and of files, and datasets by name."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from titan_integration.data.inputs.paths import STDIN, is_name, is_pipe
from titan_integration.data.sources.files import BOM, HEAD
from titan_integration.data.sources.kinds.compressed import BROKEN, compression_of
from titan_integration.data.sources.kinds.saved import first_line
from titan_integration.errors import UserError


class StreamedRow(NamedTuple):
    """A row with its place; or, where it cannot be read, the error that says so."""

    place: str
    row: Any
    error: str | None = None


@dataclass(kw_only=True)
class Lines:
    """JSON lines of files and pipes, one after the other; each rank takes its share of the rows.

    Read again from its start it gives the same rows, if the files and what writes into the pipes
    do; that is how it is resumed.
    """

    paths: Sequence[str]
    rank: int = 0
    world_size: int = 1

    def __iter__(self) -> Iterator[StreamedRow]:
        number = 0
        for path in self.paths:
            try:
                for place, line in numbered_lines(path):
                    if number % self.world_size == self.rank:
                        yield _parsed(place, line)
                    number += 1
            except UserError as error:  # as a row: an error of a thread would lose its type
                yield StreamedRow(path, None, str(error))


def numbered_lines(path: str) -> Iterator[tuple[str, bytes]]:
    """Place and content of each line that is not blank."""
    name = "standard input" if path == STDIN else path
    try:
        with _opened(path) as blocks:
            for number, line in enumerate(_lines(blocks), start=1):
                if line.strip():
                    yield f"{name}:{number}", line
    except BROKEN as error:
        raise UserError(f"{name} is damaged or was cut short: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror or error}") from error


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n") if b"\n" in block else [rest + block]
        yield from whole
    yield rest


@contextmanager
def _opened(path: str) -> Iterator[Iterator[bytes]]:
    """Blocks of the content, unpacked if it is compressed."""
    if path == STDIN:
        yield _blocks(sys.stdin.buffer)
        return
    with open(path, "rb") as raw:
        compression = None if is_pipe(path) else compression_of(raw.peek(8))
        yield _blocks(raw) if compression is None else compression.blocks(raw)


def _blocks(raw: BinaryIO) -> Iterator[bytes]:
    read = getattr(raw, "read1", raw.read)  # what is there now: a pipe may be slow to go on
    first = read(HEAD).removeprefix(BOM)
    yield first
    while block := read(HEAD):
        yield block


def _parsed(place: str, line: bytes) -> StreamedRow:
    try:
        return StreamedRow(place, json.loads(line))
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8, or too deep"
        return StreamedRow(place, None, f"{place} is not JSON: {reason}")


class Named:
    """A Hugging Face dataset that is downloaded while it is read, or parquet files read likewise.

    Args:
        name: For messages.
        dataset: A ``datasets.IterableDataset``; resumed by its own state.
        rank: Data-parallel rank.
        world_size: Data-parallel ranks; this one takes rows ``rank, rank + world_size, ...``.
    """

    def __init__(self, name: str, dataset: Any, rank: int, world_size: int) -> None:
        self.name, self.dataset = name, dataset
        self._rank, self._world_size = rank, world_size
        self._number = 0

    def __iter__(self) -> Iterator[StreamedRow]:
        for row in self.dataset:
            number, self._number = self._number, self._number + 1
            if number % self._world_size == self._rank:
                yield StreamedRow(f"{self.name} row {number + 1}", row)
        self._number = 0

    def state_dict(self) -> dict[str, Any]:
        """Of the dataset, and the rows read so far."""
        return {"dataset": self.dataset.state_dict(), "number": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the last row read."""
        self.dataset.load_state_dict(state["dataset"])
        self._number = state["number"]

    def set_epoch(self, epoch: int) -> None:
        """Told to the dataset, which may shuffle by it."""
        self._number = 0
        self.dataset.set_epoch(epoch)


def open_stream(
    paths: Sequence[str], split: str | None, *, rank: int, world_size: int
) -> Lines | Named:
    """The rows of this rank.

    Raises:
        UserError: What is named cannot be streamed, or not on several ranks.
    """
    pipe = next((path for path in paths if is_pipe(path)), None)
    if pipe is not None and world_size > 1:
        raise UserError(
            f"a pipe can be read by one data-parallel rank only, got {world_size} of them for "
            f"{pipe}; write its rows to a file, or name a dataset"
        )
    named = [path for path in paths if _needs_library(path)]
    if not named:
        return Lines(paths=paths, rank=rank, world_size=world_size)
    if len(paths) > 1:
        raise UserError(
            f"data.streaming reads one dataset, or several files of JSON lines, got {len(paths)} "
            f"paths with {named[0]}; interleave them with the datasets library, or do not stream"
        )
    return Named(named[0], _streamed(named[0], split), rank, world_size)


def _needs_library(path: str) -> bool:
    if is_pipe(path):
        return False
    if Path(path).is_dir() or (not Path(path).exists() and is_name(path)):
        return True
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _streamed(path: str, split: str | None) -> Any:
    import datasets

    name, _, configuration = path.partition(":")
    options: dict[str, Any] = {"split": split or "train", "streaming": True}
    try:
        if Path(path).is_file():
            return datasets.load_dataset("parquet", data_files=path, **options)
        return datasets.load_dataset(name, configuration or None, **options)
    except Exception as error:  # of any library below it
        raise UserError(
            f"cannot stream {path} ({first_line(error)}); give a file of JSON lines, a pipe, a "
            "folder of data files, or a name as on huggingface.co, and --data.split"
        ) from error

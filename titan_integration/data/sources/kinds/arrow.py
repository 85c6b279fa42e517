"""Arrow and parquet files; whatever else becomes Arrow is read through the table here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from titan_integration.data.sources.cache import progress
from titan_integration.data.sources.files import File, FileTable
from titan_integration.data.sources.kind import Kind, Options
from titan_integration.data.sources.table import Table, check_index
from titan_integration.errors import UserError

_BATCH = 1024  # rows of a batch: reading one row touches the memory of its batch only
_STREAM = b"\xff\xff\xff\xff"  # first bytes of an Arrow stream


@dataclass(kw_only=True)
class ArrowTable(FileTable):
    """Rows of an Arrow stream on disk, memory-mapped: near no memory per row.

    Args:
        stream: The file in Arrow's streaming format; made from ``file`` where that is another.
        fix: Applied to every row, or None.
    """

    stream: File
    fix: Callable[[dict[str, Any]], Any] | None = None
    _batches: list[pa.RecordBatch] | None = field(default=None, repr=False)
    _ends: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        self._open()
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int, /) -> Any:
        check_index(index, len(self))
        batches = self._open()
        at = int(np.searchsorted(self._ends, index, side="right"))
        start = int(self._ends[at - 1]) if at else 0
        row = without_nulls(batches[at].slice(index - start, 1).to_pylist()[0])
        return row if self.fix is None else self.fix(row)

    def where(self, index: int, /) -> str:
        """``file row number``, from 1."""
        return f"{self.file.given} row {index + 1}"

    def _open(self) -> list[pa.RecordBatch]:
        if self._batches is None:
            with pa.memory_map(str(self.stream.path)) as mapped:
                self.stream.check_size(mapped.fileno())
                batches: list[pa.RecordBatch] = ipc.open_stream(mapped).read_all().to_batches()
            self._ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
            self._batches = batches
        return self._batches

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None, "_ends": None}  # mapped anew by a worker


def without_nulls(value: Any) -> Any:
    """The value without keys that hold null: Arrow gives every row the keys of all rows."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return list(map(without_nulls, value))
    return value


def converted(
    file: File,
    read: Callable[[Path], tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, float]]]],
    fix: Callable[[dict[str, Any]], Any] | None = None,
) -> Table:
    """A table of a file that is not an Arrow stream: made one, once, in the cache.

    Args:
        file: To convert.
        read: ``path -> (schema, (batch, part of the file done) one by one)``.
        fix: Of the table.
    """

    def make(path: Path) -> None:
        try:
            schema, batches = read(file.path)
            with (
                progress(f"converting {file.given}", file.size) as shown,
                path.open("wb") as out,
                ipc.new_stream(out, schema.remove_metadata()) as stream,
            ):
                for batch, done in batches:
                    stream.write_batch(batch.replace_schema_metadata(None))
                    shown.to(int(min(1.0, done) * file.size))
        except pa.ArrowException as error:
            raise refused(file, error) from error

    made = file.cache.made_from(file.path, "arrow", make)
    stream = File.at(made, file.cache)
    return ArrowTable(file=file, stream=stream, fix=fix)


def refused(file: File, error: Exception) -> UserError:
    """What the library says of the file, in one line."""
    return UserError(f"cannot read {file.given}: {' '.join(str(error).split())[:300]}")


def _read_parquet(path: Path) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, float]]]:
    parquet = pq.ParquetFile(path, memory_map=True)
    rows = max(1, parquet.metadata.num_rows)
    batches = parquet.iter_batches(batch_size=_BATCH)
    return parquet.schema_arrow, ((b, (i + 1) * _BATCH / rows) for i, b in enumerate(batches))


def _read_arrow(path: Path) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, float]]]:
    reader = ipc.open_file(pa.memory_map(str(path)))
    count = reader.num_record_batches
    batches = ((reader.get_batch(i), (i + 1) / count) for i in range(count))
    return reader.schema, chain.from_iterable(
        ((batch.slice(start, _BATCH), done) for start in range(0, batch.num_rows, _BATCH))
        for batch, done in batches
    )


def _open_stream(file: File, options: Options) -> Table:
    table = ArrowTable(file=file, stream=file)
    try:
        len(table)
    except (pa.ArrowException, OSError) as error:
        raise refused(file, error) from error
    return table


PARQUET = Kind(
    name="parquet",
    matches=lambda file, head: head.startswith(b"PAR1"),
    open=lambda file, options: converted(file, _read_parquet),
)
ARROW_FILE = Kind(
    name="Arrow file",
    matches=lambda file, head: head.startswith(b"ARROW1"),
    open=lambda file, options: converted(file, _read_arrow),
)
ARROW_STREAM = Kind(
    name="Arrow stream",
    matches=lambda file, head: head.startswith(_STREAM),
    open=_open_stream,
)

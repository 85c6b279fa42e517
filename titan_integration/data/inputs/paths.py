"""A path, pattern, folder or name, as people write it, to a table."""

import logging
import re
import stat
from contextlib import suppress
from glob import glob, has_magic
from pathlib import Path

from titan_integration.data.inputs.joined import Joined
from titan_integration.data.sources.cache import Cache
from titan_integration.data.sources.kind import Options
from titan_integration.data.sources.kinds.registry import UnknownKindError, open_file
from titan_integration.data.sources.kinds.saved import (
    choose_split,
    is_saved,
    no_split,
    open_named,
    open_saved,
)
from titan_integration.data.sources.placed import PlacedTable
from titan_integration.data.sources.table import Table
from titan_integration.errors import UserError

logger = logging.getLogger(__name__)
STDIN = "-"
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(:[\w.-]+)?")  # of a dataset on the Hub
_FILE_SUFFIXES = re.compile(
    r"\.(jsonl?|ndjson|parquet|arrow|csv|tsv|tab|txt|text|md|gz|zst|bz2|xz|zip|tar)$", re.I
)


def is_pipe(path: str) -> bool:
    """Standard input, a named pipe, or what ``<(...)`` of a shell gives."""
    if path == STDIN:
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def check_path(path: str, flag: str) -> None:
    """Raise UserError if ``path`` names nothing; reads no data and asks no network."""
    if Path(path).exists() or is_pipe(path) or (has_magic(path) and glob(path, recursive=True)):
        return
    what = "matches no file" if has_magic(path) else "is not there"
    if not is_name(path):
        raise UserError(f"{flag} must name files, got {path!r}, which {what}")


def is_name(path: str) -> bool:
    """Whether this can be the name of a dataset on the Hub: ``owner/name:configuration``."""
    return bool(_NAME.fullmatch(path)) and not _FILE_SUFFIXES.search(path)


def open_path(path: str, options: Options, cache: Cache) -> Table:
    """The rows that a path stands for.

    Args:
        path: A file, a folder of files (read split by split, as ``datasets`` does by their
            names), a folder of ``save_to_disk``, a pattern with ``*``, or a dataset's name.
        options: How to open.
        cache: For what is made out of files.

    Raises:
        UserError: It names nothing, or something that cannot be read.
    """
    where = Path(path)
    if is_pipe(path):
        raise UserError(f"{path} is a pipe, which can only be streamed: set --data.streaming")
    if where.is_dir():
        if is_saved(where):
            return _placed(open_saved(where, options), where, options)
        return _open_all(path, _files_of(where, options), options, cache)
    if where.exists():
        no_split(path, options)
        return _placed(open_file(where, options, cache), where.parent, options)
    if has_magic(path):
        no_split(path, options)
        return _open_all(path, sorted(glob(path, recursive=True)), options, cache)
    check_path(path, "data.path")
    return _placed(open_named(path, options, cache), None, options)


def _placed(table: Table, folder: Path | None, options: Options) -> Table:
    return PlacedTable(table=table, folder=folder) if options.pictures else table


def _files_of(folder: Path, options: Options) -> list[str]:
    """Paths of a folder's files, in order; where names tell splits, of one of them."""
    from datasets.data_files import EmptyDatasetError, get_data_patterns, resolve_pattern

    root = str(folder.resolve())
    try:
        patterns = {str(split): found for split, found in get_data_patterns(root).items()}
        everything = set(resolve_pattern("**", root))
    except (FileNotFoundError, EmptyDatasetError):
        raise UserError(f"{folder} holds no file to read rows from") from None
    if list(patterns) == ["train"] and options.split not in (None, "train"):
        no_split(str(folder), options)
    split = choose_split(str(folder), list(patterns), options)
    inside: set[str] = set()
    for pattern in patterns[split]:
        with suppress(FileNotFoundError):  # not every spelling of a split is there
            inside.update(resolve_pattern(pattern, root))
    if left := sorted(everything - inside):
        others = f"{len(left)} files are no part of it (as {Path(left[0]).name})"
        logger.info("%s: reading the split %s; %s", folder, split, others)
    return sorted(str(folder / Path(path).relative_to(root)) for path in inside)


def _open_all(name: str, paths: list[str], options: Options, cache: Cache) -> Table:
    """All files that are of a known kind; the others are told of, not passed over in silence."""
    tables, unknown = [], []
    for path in paths:
        if Path(path).is_dir():
            continue
        try:
            table = open_file(Path(path), Options(pictures=options.pictures), cache)
            tables.append(_placed(table, Path(path).parent, options))
        except UnknownKindError:
            unknown.append(path)
    if unknown:
        logger.warning(
            "%d files of %s are left out, being of no known kind (as %s)",
            len(unknown),
            name,
            unknown[0],
        )
    if not tables:
        raise UserError(f"{name} holds no file to read rows from")
    return Joined(tables=tables)

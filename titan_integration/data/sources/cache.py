"""Files made once out of inputs (line indexes, unpacked and converted files), for all ranks."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from titan_integration.data.sources.fingerprint import combine, fingerprint_file
from titan_integration.errors import UserError

logger = logging.getLogger(__name__)
_SHOW_AFTER_S = 2.0
_LOG_EVERY_S = 10.0


class CacheError(UserError):
    """The cache folder cannot be written, or its disk is full."""


def default_folder() -> Path:
    """Beside the cache of ``datasets``, which people move to a large disk by ``HF_HOME``."""
    home = os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_DATASETS_CACHE", Path(home) / "datasets")) / "odb-nodes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Where made files are kept.

    A file is made by the first process that asks for it; the others wait for it under a lock. It
    is found again by the digest, size and time of change of the file that it was made from, so a
    changed file is never read through an old one. Nothing here is ever needed again: the folder
    may be removed between runs.
    """

    folder: Path = field(default_factory=default_folder)

    def made_from(self, source: Path, kind: str, make: Callable[[Path], None]) -> Path:
        """The file of that kind made from ``source``; ``make`` writes it to the path it is given.

        Raises:
            CacheError: The folder cannot be written, or the disk is full.
        """
        stat = source.stat()
        key = combine([kind, fingerprint_file(source), stat.st_mtime_ns])
        name = re.sub(r"[^\w.-]", "_", source.name, flags=re.ASCII)[:80]  # for people who look
        made = self.folder / f"{name}.{key}.{kind}"
        if made.exists():
            return made
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{made}.lock"):
                if not made.exists():
                    self._make(made, make)
        except OSError as error:
            raise CacheError(
                f"cannot write {error.filename or made} (a file made from {source}): "
                f"{error.strerror or error}; name another folder by --data.cache_dir"
            ) from error
        return made

    def _make(self, made: Path, make: Callable[[Path], None]) -> None:
        part = made.with_name(f"{made.name}.part")
        try:
            make(part)
            part.replace(made)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()


class Progress:
    """Bytes done of a file: a bar on a terminal, else a line of log now and then, after 2 s."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, max(1, total), 0
        self._shown = time.monotonic() - _LOG_EVERY_S + _SHOW_AFTER_S
        self._bar = tqdm(
            total=total, desc=what, unit="B", unit_scale=True, delay=_SHOW_AFTER_S, disable=None
        )

    def to(self, done: int) -> None:
        """Note that ``done`` bytes are done in all."""
        self._bar.update(done - self._done)
        self._done = done
        if self._bar.disable and time.monotonic() - self._shown > _LOG_EVERY_S:
            self._shown = time.monotonic()
            logger.info("%s: %.0f%%", self._what, 100 * done / self._total)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()


@contextmanager
def progress(what: str, total: int) -> Iterator[Progress]:
    """A ``Progress`` over ``total`` bytes."""
    shown = Progress(what, total)
    try:
        yield shown
    finally:
        shown.close()

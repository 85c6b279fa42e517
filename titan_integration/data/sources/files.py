"""A file on disk as a kind of table sees it: its bytes, its name for messages, its first bytes."""

import logging
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from titan_integration.data.sources.cache import Cache
from titan_integration.data.sources.fingerprint import fingerprint_file
from titan_integration.errors import UserError

logger = logging.getLogger(__name__)
BOM = b"\xef\xbb\xbf"
HEAD = 1 << 20  # bytes that kinds are told apart by


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file to read rows from.

    Attributes:
        given: The file that a person named: its name is in messages, its bytes are fingerprinted.
        path: The file to read; another than ``given`` where that is compressed.
        cache: For what is made out of it.
        size: Bytes of ``path`` when it was opened.
    """

    given: Path
    path: Path
    cache: Cache
    size: int

    @classmethod
    def at(cls, path: Path, cache: Cache) -> "File":
        """The file as it is now. Raises OSError where there is none."""
        return cls(given=path, path=path, cache=cache, size=path.stat().st_size)

    def unpacked(self, path: Path) -> "File":
        """The same file, with its content at ``path``."""
        return replace(self, path=path, size=path.stat().st_size)

    def head(self) -> bytes:
        """The first bytes, a megabyte at most, without a byte order mark."""
        with self.path.open("rb") as file:
            return file.read(HEAD).removeprefix(BOM)

    def check_size(self, fd: int) -> None:
        """Raise UserError if the open file has shrunk since its rows were found; warn of growth."""
        size = os.fstat(fd).st_size
        if size < self.size:
            raise UserError(
                f"{self.given} had {self.size} bytes when it was opened and has {size} now: rows "
                "are missing; put the file back as it was and run the same command again"
            )
        if size > self.size and self.path not in _told_of_growth:
            _told_of_growth.add(self.path)
            logger.warning(
                "%s has grown from %d to %d bytes since it was opened: its new rows are no part "
                "of this run",
                self.given,
                self.size,
                size,
            )


_told_of_growth: set[Path] = set()


@dataclass(kw_only=True)
class FileTable:
    """What tables of one file have in common."""

    file: File
    _fingerprint: str | None = field(default=None, repr=False)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The file's name, as given."""
        return (str(self.file.given),)

    def fingerprint(self) -> str:
        """Of the file as given; read once."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_file(self.file.given)
        return self._fingerprint

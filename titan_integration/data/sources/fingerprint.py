"""A cheap digest of files, to notice that a run's data is not what it was."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_WHOLE = 8 << 20  # bytes; files up to this are read as a whole
_BLOCK = 64 << 10
_BLOCKS = 64  # of a larger file, evenly spread, the first and the last bytes among them


def fingerprint_file(path: str | Path) -> str:
    """Hex digest of a file's name, its size, and its bytes or a sample of them.

    It notices another name (the folder does not count, so that data may be moved), another size,
    and any change in a file of up to 8 MB. Of a larger file it reads 64 blocks of 64 KB, evenly
    spread from the first byte to the last: a change that keeps the size to the byte and falls
    between the blocks is not noticed.

    Raises:
        OSError: The file cannot be read.
    """
    path = Path(path)
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(f"{path.name}\0{size}\0".encode("utf-8", "surrogateescape"))
        if size <= _WHOLE:
            digest.update(file.read())
        else:
            for block in range(_BLOCKS):
                file.seek((size - _BLOCK) * block // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def fingerprint_files(paths: Iterable[str | Path]) -> str:
    """One digest of several files in their order."""
    return combine(map(fingerprint_file, paths))


def combine(parts: Iterable[object]) -> str:
    """One digest of several texts or numbers in their order."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=16).hexdigest()

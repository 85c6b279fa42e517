"""One file with the states of all ranks: written whole or not at all, for any number of ranks."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from odb_nodes.state.codec import pack_states, unpack_states
from odb_nodes.state.reshard import reshard_states


class Gathering(Protocol):
    """What of a transport is needed here."""

    rank: int
    world_size: int

    def gather_aside(self, blob: bytes, what: str) -> list[bytes]:
        """The bytes of all ranks, by rank."""


def save_shared(state: Any, path: Path, ranks: Gathering) -> None:
    """Write the states of all ranks, by rank 0; all ranks call this together.

    Raises:
        OSError: On all ranks, if the file cannot be written.
    """
    blobs = ranks.gather_aside(pack_states([state]), "saving the states")

    def write() -> None:
        if ranks.rank == 0:
            states = [state for blob in blobs for state in unpack_states(blob)]
            write_atomically(path, pack_states(states))

    _together(write, ranks, f"saving {path}")


def load_shared(path: Path, ranks: Gathering) -> Any:
    """This rank's state from a file of ``save_shared``; all ranks call this together.

    Raises:
        OSError: On all ranks, if one of them cannot read the file.
        StateError: The file is damaged, or its states cannot be dealt out to this many ranks.
    """
    blob = _together(path.read_bytes, ranks, f"loading {path}")
    states = unpack_states(blob)
    if len(states) != ranks.world_size:
        states = reshard_states(states, ranks.world_size)
    return states[ranks.rank]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader finds the old one or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems know no such thing
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _together(work: Callable[[], Any], ranks: Gathering, what: str) -> Any:
    """``work()`` on every rank; if it fails on one, it fails on all of them."""
    result, failure, told = None, None, ""
    try:
        result = work()
    except OSError as error:
        failure, told = error, str(error) or repr(error)
    for rank, blob in enumerate(ranks.gather_aside(told.encode(errors="replace"), what)):
        if failure is not None:
            raise failure
        if blob:
            raise OSError(f"{what}: rank {rank} failed: {blob.decode(errors='replace')}")
    return result

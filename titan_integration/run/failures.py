"""Errors of the environment in one line: what happened, and what to do about it."""

import errno
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from odb_nodes import PeerFailedError
from odb_nodes.errors import SampleError, StateError, WorkerDiedError
from titan_integration.errors import UserError

_DISK = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "grant the permission",
    errno.EPERM: "grant the permission",
    errno.EIO: "check the file system",
    errno.ESTALE: "check that the file system is mounted",
    errno.ENOTCONN: "check that the file system is mounted",
    errno.ENODEV: "check that the file system is mounted",
    errno.ENOENT: "check that the file system is mounted",
    errno.ENOTDIR: "name a folder",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files",
}
# What torch and gloo say where they raise nothing more special than a RuntimeError.
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket closed",
    "Timed out waiting",
    "Application timeout caused pair closure",
    "NCCL communicator was aborted",
    "connection was likely closed",
    "wait timeout after",
)
_NO_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "not enough memory: you tried")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error that has one line.

    Attributes:
        line: Without "error: ".
        secondary: Whether another rank's end caused it, so that another line says more.
    """

    line: str
    secondary: bool = False


def explain(error: BaseException) -> Failure | None:
    """The error as one line; None for one that only its trace explains, a bug."""
    causes = list(_causes(error))
    for kind in (_of_user, _of_memory, _of_disk, _of_data, _of_peers):
        for cause in causes:
            found = kind(cause)
            if found is not None:
                return found
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from, the failures of all ranks in a checkpoint included."""
    while error is not None:
        yield error
        failures: Any = getattr(error, "failures", None)
        if isinstance(failures, dict):
            for failure in failures.values():
                yield from _causes(failure[0] if isinstance(failure, tuple) else failure)
        error = error.__cause__ or error.__context__


def _of_user(error: BaseException) -> Failure | None:
    return Failure(line=" ".join(str(error).split())) if isinstance(error, UserError) else None


def _of_memory(error: BaseException) -> Failure | None:
    if not is_out_of_memory(error):
        return None
    return Failure(
        line=f"out of memory ({first_line(error)}); set a smaller --data.odb.token_budget, "
        "--training.seq_len or model"
    )


def _of_disk(error: BaseException) -> Failure | None:
    if not isinstance(error, OSError) or error.errno not in _DISK:
        return None
    if isinstance(error, (ConnectionError, TimeoutError)):
        return None
    where = f"{error.filename}: " if error.filename else ""
    return Failure(
        line=f"{where}{error.strerror}; {_DISK[error.errno]} and run the same command again"
    )


def _of_data(error: BaseException) -> Failure | None:
    if not isinstance(error, (SampleError, StateError, WorkerDiedError)):
        return None
    return Failure(line=first_line(error))


def _of_peers(error: BaseException) -> Failure | None:
    text = str(error)
    if isinstance(error, PeerFailedError):
        return Failure(line=first_line(error), secondary=True)
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError, dist.DistBackendError)):
        return Failure(
            line=f"the ranks cannot reach each other: {first_line(error)}; check that all of them "
            "run, MASTER_ADDR and MASTER_PORT, and that the port is free",
            secondary=any(sign in text for sign in _LOST_PEER),
        )
    if isinstance(error, (RuntimeError, ConnectionError)) and any(s in text for s in _LOST_PEER):
        return Failure(line=f"lost another rank: {first_line(error)}", secondary=True)
    return None


def root_cause(error: BaseException) -> BaseException:
    """What the error was raised from in the end; of several ranks, the first one's."""
    failures: Any = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        first = next(iter(failures.values()))
        return root_cause(first[0] if isinstance(first, tuple) else first)
    return error if error.__cause__ is None else root_cause(error.__cause__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the machine had no memory left for it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY)


def first_line(error: BaseException) -> str:
    """The message, shortened to one line; of an assertion without one, its condition."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines:
        return lines[0][:500]
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AssertionError) and frames:
        return f"not fulfilled: {frames[-1].line}"
    return type(error).__name__

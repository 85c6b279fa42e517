"""One run per folder: a lock file that names its owner, and that a dead owner does not keep.

The owner renews the file's time every few seconds. Another process takes the lock over when the
owner is a process of this machine that is gone, or, where that cannot be told (another host or
container), when the time is old.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from titan_integration.errors import UserError

NAME = "run.lock"
RENEW_S = 10.0
STALE_S = 90.0


class RunLock:
    """Holds ``folder/run.lock`` from construction until :meth:`release`.

    Args:
        folder: Must exist.
    Raises:
        UserError: Another run holds it; names host and process.
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._text = json.dumps({**_me(), "token": uuid.uuid4().hex}) + "\n"
        while not self._take():
            owner = _owner(self._path)
            if owner is None:
                continue  # released meanwhile
            if not self._is_stale(owner):
                raise UserError(
                    f"another run works in {folder}: process {owner.get('pid')} on "
                    f"{owner.get('host')}, since {owner.get('since')}; wait for its end, stop it, "
                    "or set another --dump_folder"
                )
            self._discard(owner)
        self._released = threading.Event()
        threading.Thread(target=self._renew, name="lock", daemon=True).start()

    def release(self) -> None:
        """Remove the file if it is still ours; harmless when done already."""
        self._released.set()
        with contextlib.suppress(OSError):
            if self._path.read_text() == self._text:
                self._path.unlink()

    def _take(self) -> bool:
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(fd, "w") as file:
            file.write(self._text)
        return True

    def _is_stale(self, owner: dict[str, Any]) -> bool:
        me = _me()
        if all(owner.get(key) == me[key] for key in ("host", "boot", "namespace")):
            return _started(owner.get("pid")) != owner.get("started")
        probe = self._path.with_name(f".{NAME}.{os.getpid()}")
        probe.touch()  # the file system's own clock, which the owner's renewals went by
        try:
            age_s = probe.stat().st_mtime - self._path.stat().st_mtime
        except FileNotFoundError:
            return False  # released meanwhile; the next try takes it
        finally:
            probe.unlink()
        return age_s > STALE_S

    def _discard(self, owner: dict[str, Any]) -> None:
        """Remove the stale file, unless another process has put its own there meanwhile."""
        aside = self._path.with_name(f".{NAME}.{uuid.uuid4().hex}")
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return
        if _owner(aside) != owner:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self._path)
        aside.unlink()

    def _renew(self) -> None:
        while not self._released.wait(RENEW_S):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def _me() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "namespace": _link("/proc/self/ns/pid"),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _owner(path: Path) -> dict[str, Any] | None:
    """What the file says of its owner; {} while it is being written, None if there is none."""
    try:
        loaded = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _started(pid: Any) -> str | None:
    """When a process of this machine began, in the kernel's clock ticks; None if it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split() if stat else []
    return fields[19] if fields and fields[0] not in "ZX" else None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None

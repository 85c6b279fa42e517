"""Saving so that a folder ``step-N`` is never half old and half new, and purging only what may go.

torchtitan saves into a folder that is there already: cut short, the old index would then describe a
mixture of old and new shards. And it purges by number, broken folders and those of an abandoned
future included, which may leave nothing whole.
"""

import contextlib
import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from titan_integration.errors import UserError
from titan_integration.process_groups import on_rank_zero
from titan_integration.run.checkpoints import INDEX, UNFINISHED, examine, newest_whole, steps_in
from titan_integration.run.failures import explain, first_line, root_cause

_NEAR = 1 << 20  # bytes that a single write may have
_PROBES = 16
REPLACED = "replaced-"  # torchtitan takes any name with "step-N" in it for a checkpoint


class SafeSaving:
    """Wraps ``dcp_save`` of a checkpoint manager and purges in its place.

    Args:
        checkpointer: torchtitan's ``CheckpointManager``, enabled.
        group: Gloo group of all ranks; None in a world of one.
        before_save: Called on all ranks before anything is written; may raise on all of them.
    """

    def __init__(
        self,
        checkpointer: Any,
        group: dist.ProcessGroup | None,
        before_save: Callable[[], None],
    ) -> None:
        self._folder = Path(checkpointer.folder)
        self._keep = checkpointer.keep_latest_k
        self._purge_queue = getattr(checkpointer, "purge_queue", None)
        self._group, self._before_save = group, before_save
        self._save: Callable[..., Any] = checkpointer.dcp_save
        self.saved: Path | None = None
        checkpointer.keep_latest_k = 0  # purging is done here
        checkpointer.dcp_save = self

    def __call__(self, state_dict: dict[str, Any], checkpoint_id: str, *a: Any, **kw: Any) -> Any:
        """As ``dcp_save``, into a folder that is empty."""
        self._before_save()
        path = Path(checkpoint_id)
        self._on_rank_zero(lambda: self._prepare(path))
        try:
            result = self._save(state_dict, checkpoint_id, *a, **kw)
        except (Exception, CheckpointException) as error:
            failure = explain(error)
            if failure is not None and failure.secondary:
                raise
            cause = disk_problem(path)
            why = failure or (explain(cause) if cause is not None else None)
            reason = why.line if why is not None else first_line(root_cause(error))
            raise UserError(
                f"cannot save {path.name}: {reason}; {remains(self._folder)}"
            ) from error
        self.saved = path
        if dist.get_rank() == 0:
            self._note_ends()
            self._purge(path)
        return result

    def _note_ends(self) -> None:
        """Saves that have ended are marked as begun no longer; one in the background is later."""
        for _, path in steps_in(self._folder):
            if (path / INDEX).exists():
                (path / UNFINISHED).unlink(missing_ok=True)

    def _on_rank_zero(self, work: Callable[[], None]) -> None:
        try:
            on_rank_zero(work, self._group)
        except OSError as error:
            raise UserError(f"cannot save to {self._folder}: {error.strerror or error}") from error

    def _prepare(self, path: Path) -> None:
        for old in self._folder.glob(f"{REPLACED}[0-9]*"):
            step = int(old.name.removeprefix(REPLACED))
            if examine(step, old.with_name(f"step-{step}")).problem is None:
                shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            aside = path.with_name(path.name.replace("step-", REPLACED))
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        path.mkdir(parents=True)
        (path / UNFINISHED).touch()

    def _purge(self, newest: Path) -> None:
        """Remove, on a thread, what is older than the newest whole ones, and broken ones."""
        if self._keep <= 0 or self._purge_queue is None:
            return
        step_now = int(newest.name.removeprefix("step-"))
        past = [examine(step, path) for step, path in steps_in(self._folder) if step < step_now]
        whole = [found for found in past if found.problem is None]
        broken = [found for found in past if found.lost]
        for found in [*whole[self._keep - 1 :], *broken]:
            with contextlib.suppress(OSError):
                (found.path / INDEX).unlink()  # first: a half-removed one must not look whole
            self._purge_queue.put(str(found.path))


def restore_replaced(folder: Path) -> None:
    """Put back checkpoints whose replacement was never finished."""
    for old in folder.glob(f"{REPLACED}[0-9]*"):
        step = int(old.name.removeprefix(REPLACED))
        path = folder / f"step-{step}"
        if examine(step, path).problem is None:
            continue
        if examine(step, old).problem is None:
            shutil.rmtree(path, ignore_errors=True)
            old.rename(path)


def disk_problem(path: Path) -> OSError | None:
    """What writing there fails with: torch's own writer hides it behind an error of its own."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = [file.stat().st_size for file in path.glob("*")] if path.is_dir() else []
    if limit != resource.RLIM_INFINITY and max(sizes, default=0) >= limit - _NEAR:
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    probe = path.parent / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            for _ in range(_PROBES):
                file.write(bytes(_NEAR))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def remains(folder: Path) -> str:
    """What a run that ends now goes on from, for a message."""
    found = newest_whole(folder).checkpoint
    return "there is no whole checkpoint" if found is None else f"{found.path.name} is whole"

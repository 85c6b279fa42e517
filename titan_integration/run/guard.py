"""One run in its folder, from the first process group to the last save."""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from titan_integration.errors import Stopped, UserError
from titan_integration.process_groups import all_max, on_rank_zero, run_group
from titan_integration.run import logs, telling
from titan_integration.run.checkpoints import Choice, examine, newest_whole, steps_in
from titan_integration.run.failures import explain, first_line, root_cause
from titan_integration.run.lock import RunLock
from titan_integration.run.saving import SafeSaving, restore_replaced
from titan_integration.run.stopping import exit_code, name_of, request

logger = logging.getLogger(__name__)
WAIT_S = 1800.0  # for the slowest rank to end a step
NEW_DATA = "begin the data anew with --checkpoint.exclude_from_loading dataloader"


class Guard:
    """Locks the folder, chooses the checkpoint, makes saves safe and ends the run when asked to.

    All ranks make it together, after the process group, and call its methods alike.

    Args:
        dump_folder: Of the run.
        checkpoint: torchtitan's configuration of checkpoints.
        stop_within_s: Seconds from a request to stop to the end of the process at most.
        stop_after_s: Seconds after which the run asks itself to stop.
    Raises:
        UserError: Another run works in the folder, it cannot be written, or nothing in it is
            whole; the same on all ranks.
    """

    def __init__(
        self,
        dump_folder: str,
        checkpoint: Any,
        *,
        stop_within_s: float,
        stop_after_s: float | None,
    ) -> None:
        self.group = run_group(WAIT_S)
        self.stopped = 0
        self._config = checkpoint
        self._dump_folder = Path(dump_folder)
        self.folder = self._dump_folder / checkpoint.folder
        self._times = (stop_within_s, stop_after_s)
        self._saving: SafeSaving | None = None
        self._checkpointer: Any = None
        self._lock: RunLock | None = None
        self._local = "://" not in str(checkpoint.folder) and "://" not in dump_folder
        if telling.current is not None:
            telling.current.connect()
        on_rank_zero(self._enter, self.group)
        if logs.current is not None and self._local:
            logs.current.write_to(dump_folder)
        choice: Choice | None = on_rank_zero(self._choose, self.group)
        self.resumes_at = choice.checkpoint.step if choice and choice.checkpoint else None
        if choice is not None and choice.passed_over:
            logger.warning("passed over damaged or partial checkpoints: %s", choice.reasons())

    def protect(self, checkpointer: Any, before_save: Callable[[], None]) -> None:
        """Have the checkpoint manager load what was chosen, and save safely."""
        if not self._config.enable:
            return
        self._checkpointer = checkpointer
        if self._local:
            self._saving = SafeSaving(checkpointer, self.group, before_save)
            step = self.resumes_at if self.resumes_at is not None else -1
            checkpointer._find_load_step = lambda folder="": step
        load = checkpointer.load
        checkpointer.load = lambda step=-1: self._load(load, step)

    def begin(self) -> None:
        """The first step is next: from now on a request to stop saves first."""
        within_s, after_s = self._times
        request.arm(within_s=within_s, stop_after_s=after_s)

    def end_step(self, bad: bool) -> bool:
        """Agree on a stop; returns whether any rank saw something bad in the step."""
        wanted, is_bad = all_max([request.wanted, int(bad)], self.group)
        if wanted and not self.stopped:
            self.stopped = wanted
            if self._checkpointer is not None:
                self._checkpointer.interval = 1  # the loop's own save takes this step
        return bool(is_bad)

    def raise_if_stopped(self, step: int) -> None:
        """End a stopped run, now that the step was saved. Raises Stopped."""
        if not self.stopped:
            return
        if self._checkpointer is not None:
            self._checkpointer.maybe_wait_for_saving()
        saved = self._saving.saved if self._saving is not None else None
        if saved is not None and saved.name == f"step-{step}":
            what = f"saved in {saved}; the same command goes on from there"
        else:
            what = "nothing was saved, because checkpoint.enable is off or load_only is on"
        who = name_of(self.stopped)
        raise Stopped(f"stopped by {who} after step {step}, {what}", exit_code(self.stopped))

    def close(self) -> None:
        """Release the folder; harmless when done already."""
        request.disarm()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _load(self, load: Callable[[int], bool], step: int) -> bool:
        try:
            return load(step)
        except (Exception, CheckpointException) as error:
            if explain(error) is not None:
                raise
            cause = first_line(root_cause(error))
            if "Missing key in checkpoint state_dict: data" in cause:
                raise UserError(f"the checkpoint was not saved with ODB; {NEW_DATA}") from error
            what = "the weights" if self.resumes_at is None else f"step-{self.resumes_at}"
            raise UserError(
                f"cannot load {what}: {cause}; is it of this model and configuration?"
            ) from error

    def _enter(self) -> None:
        if not self._local:
            return
        folders = [self._dump_folder]
        if self._config.enable and not self._config.load_only:
            folders.append(self.folder)
        for folder in folders:
            make_writable(folder)
        self._lock = RunLock(self._dump_folder)
        telling.at_end.append(self._lock.release)

    def _choose(self) -> Choice | None:
        """On rank 0: what to begin with; None where torchtitan decides by itself."""
        if not self._config.enable or not self._local:
            return None
        if not self._config.load_only:
            restore_replaced(self.folder)
        wanted = self._config.load_step
        if wanted != -1:
            return self._wanted(wanted)
        choice = newest_whole(self.folder)
        never_whole = all(found.begun for found in choice.passed_over)
        if choice.checkpoint is None and not never_whole:
            raise UserError(
                f"no checkpoint in {self.folder} is whole ({choice.reasons()}); move the folder "
                "away to begin anew, or set another --dump_folder"
            )
        return choice

    def _wanted(self, step: int) -> Choice:
        found = examine(step, self.folder / f"step-{step}")
        if not found.path.is_dir():
            there = ", ".join(str(step) for step, _ in steps_in(self.folder)) or "none"
            raise UserError(
                f"checkpoint.load_step must be a step that was saved in {self.folder} ({there}), "
                f"got {step}"
            )
        if found.problem is not None:
            raise UserError(
                f"checkpoint.load_step {step} cannot be loaded: {found.problem}; "
                "leave --checkpoint.load_step out to take the newest whole one"
            )
        return Choice(checkpoint=found, passed_over=())


def make_writable(folder: Path) -> None:
    """Make the folder and write to it. Raises UserError with the cause if that fails."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; set --dump_folder") from error
    finally:
        with contextlib.suppress(OSError):  # the folder is not there
            probe.unlink(missing_ok=True)

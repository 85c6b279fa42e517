"""Runs of the public command, each with a time limit, and only their own processes killed."""

import atexit
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from titan_integration.run.processes import parents
from tools.chaos.preload import PIDS, Preloaded
from tools.chaos.processes import family, forked, kill

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 240.0  # ten times what a run takes on two idle cores


@dataclass(frozen=True)
class Result:
    """How a run ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def losses(self) -> dict[int, str]:
        """Loss of every step, as printed; of the last time the step was trained."""
        return {
            int(step): loss for step, loss in re.findall(r"step (\d+)  .*?  loss (\S+)  ", self.out)
        }


class Run:
    """A training run in the background: ``python -m`` for one rank, torchrun for more.

    Args:
        folder: Checkpoints, summary, audit log and output go here.
        args: Of the command, after module and config.
        ranks: Processes that train.
        config: Function of ``tests.titan.tiny``.
        entry: Module to run.
        terminal: File descriptor that gets stderr instead of the output file.
        fresh: Start Python anew, as a person does, instead of forking one that has imported
            torchtitan already: ten seconds more for the same run.
        limits: Bounds of the processes, e.g. ``{resource.RLIMIT_FSIZE: 100_000}``.
        port: Of the ranks' store; None takes a free one.
        env: Further environment variables.
    """

    def __init__(
        self,
        folder: Path,
        *args: str,
        ranks: int = 1,
        config: str = "tiny",
        entry: str = "titan_integration.train",
        terminal: int | None = None,
        fresh: bool = False,
        limits: dict[int, int] | None = None,
        port: str | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        python = sys.executable if fresh else str(preloaded().python)
        launcher = [python, "-m"]
        if ranks > 1:
            launcher += ["titan_integration.launch"]
            address = ["--master_addr", "127.0.0.1", "--master_port", str(port)]
            launcher += ["--standalone"] if port is None else address
            launcher += [f"--nproc_per_node={ranks}", "-m"]
        command = [*launcher, entry, "--module", "tests.titan.tiny"]
        command += ["--config", config, "--dump_folder", str(folder)]
        command += ["--data.audit_log", str(folder / "audit"), *args]
        self._pids = folder / "pids.txt"
        self._pids.write_text("")
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdout=out,
                stderr=err if terminal is None else terminal,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python, **(env or {})}
                | {PIDS: str(self._pids)},
                start_new_session=True,
                preexec_fn=functools.partial(_limit, limits or {}),
            )

    def wait(self, limit_s: float = LIMIT_S) -> Result:
        """Wait for the end. A run over the limit is killed, and fails the test with its output."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {limit_s} s:\n{self._tail()}") from None
        return Result(code, self._out.read_text(), self._err.read_text())

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        """Wait until that rank has delivered the samples of that step."""
        path = self.folder / f"audit.rank{rank}.jsonl"
        started = time.monotonic()
        while not any(line.get("step", 0) >= step for line in _complete_lines(path)):
            if self.process.poll() is not None or time.monotonic() - started > LIMIT_S:
                self.kill()
                raise AssertionError(f"rank {rank} did not reach step {step}:\n{self._tail()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL the launcher and all processes below it."""
        kill(self.pids())
        self.process.wait()

    def outliving(self, pids: list[int], limit_s: float = 10.0) -> list[int]:
        """Those of ``pids`` that are still alive when the system had time to end them."""
        started = time.monotonic()
        while alive := [pid for pid in pids if pid in parents()]:
            if time.monotonic() - started > limit_s:
                break
            time.sleep(0.1)
        return alive

    def pids(self) -> list[int]:
        """The run's processes that are alive: the one started here and its descendants."""
        return family([self.process.pid, *(pid for pid, _ in forked(self._pids))])

    def signal(self, rank: int, signum: signal.Signals) -> None:
        """Send a signal to one rank only."""
        os.kill(self.pid_of(rank), signum)

    def wait_for_listening(self) -> None:
        """Wait until rank 0 has taken over the signals, as the first thing that it does."""
        started = time.monotonic()
        while not any(rank == "0" and _catches(pid) for pid, rank in forked(self._pids)):
            assert time.monotonic() - started < LIMIT_S, self._tail()
            time.sleep(0.02)

    def pid_of(self, rank: int) -> int:
        """The process of that rank, of a run that is not fresh."""
        return next(pid for pid, found in forked(self._pids) if found == str(rank))

    def _tail(self) -> str:
        return (self._out.read_text() + self._err.read_text())[-4000:]


def _catches(pid: int) -> bool:
    """Whether the process has a handler of its own for SIGTERM."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)  # type: ignore[index]
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@functools.cache
def preloaded() -> Preloaded:
    """The server that runs are forked from; it lives as long as this process."""
    server = Preloaded()
    atexit.register(server.close)
    return server


def _limit(limits: dict[int, int]) -> None:
    for kind, bound in limits.items():
        resource.setrlimit(kind, (bound, bound))


def train(folder: Path, *args: str, **options: Any) -> Result:
    """Run to the end, which must be a good one; ``options`` as of :class:`Run`."""
    result = Run(folder, *args, **options).wait()
    assert result.code == 0, (result.out + result.err)[-4000:]
    return result


def summary(folder: Path) -> dict[str, Any]:
    """The run's ``odb_summary.json``."""
    loaded: dict[str, Any] = json.loads((folder / "odb_summary.json").read_text())
    return loaded


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """TensorBoard's values by tag and step; of the last time the step was trained."""
    found: dict[str, dict[int, float]] = {}
    for file in sorted(folder.rglob("events.out.tfevents.*"), key=lambda path: path.name):
        events = EventAccumulator(str(file))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            values = found.setdefault(tag, {})
            values.update({event.step: event.value for event in events.Scalars(tag)})
    return found


def delivered(folder: Path) -> list[tuple[int, int]]:
    """(epoch, index) of all samples that count: a resumed run voids what came after its start.

    Ranks may come and go: the voids of rank 0 hold for all of them.
    """
    logs = [_complete_lines(path) for path in sorted(folder.glob("audit.rank*.jsonl"))]
    found = []
    for lines in logs:
        kept: list[dict[str, Any]] = []
        for line in lines:
            if "resumed_from" in line:
                kept = [old for old in kept if old["step"] <= line["resumed_from"]]
            else:
                kept.append(line)
        found += [(line["epoch"], index) for line in kept for index in line["indices"]]
    return found


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

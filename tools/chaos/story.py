"""One run after the other in one folder, until all of its data was trained on."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titan_integration.run.checkpoints import examine, steps_in
from titan_integration.run.saving import REPLACED
from tools.chaos.config import NUM_ROWS
from tools.chaos.preload import PIDS
from tools.chaos.processes import family, forked, kill

HANGS_AFTER_S = 300.0
DISK_MB = 256


@dataclass(kw_only=True)
class Tally:
    """What is counted over all runs."""

    runs: int = 0
    lost: int = 0
    repeated: int = 0
    whole_checkpoints_lost: int = 0
    unexplained: int = 0
    codes: Counter[int] = field(default_factory=Counter)

    def line(self) -> str:
        """``runs=100 lost=0 ...``."""
        return (
            f"runs={self.runs} lost={self.lost} repeated={self.repeated} "
            f"whole_checkpoints_lost={self.whole_checkpoints_lost} unexplained={self.unexplained}"
        )


class Running:
    """A run in the background."""

    def __init__(self, story: "Story", ranks: int, args: list[str], limit: int | None) -> None:
        story.number += 1
        self.audit = story.logs / f"run-{story.number:03d}"
        self._listed = story.logs / f"run-{story.number:03d}.pids"
        self.out, self.err = self.audit.with_suffix(".out"), self.audit.with_suffix(".err")
        command = [story.python, "-m", "titan_integration.launch", "--standalone"]
        command += [f"--nproc_per_node={ranks}", "-m", "titan_integration.train"]
        command += ["--module", "tools.chaos.config", "--config", "tiny", *story.data, *args]
        command += ["--dump_folder", str(story.folder), "--data.audit_log", str(self.audit)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": story.python}

        def bound() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=err,
                env={**environment, PIDS: str(self._listed)},
                preexec_fn=bound,
                start_new_session=True,
            )

    def pid_of(self, rank: int) -> int | None:
        """The process of a rank, if it has begun."""
        return next((pid for pid, found in forked(self._listed) if found == str(rank)), None)

    def wait_for_step(self, step: int) -> None:
        """Wait until rank 0 has that step's samples, or the run has ended."""
        started, path = time.monotonic(), Path(f"{self.audit}.rank0.jsonl")
        while self.process.poll() is None and time.monotonic() - started < HANGS_AFTER_S:
            if any(line.get("step", 0) >= step for line in read_lines(path)):
                return
            time.sleep(0.02)

    def send(self, signum: signal.Signals, rank: int | None = None) -> None:
        """To the launcher, or to one rank."""
        pid = self.process.pid if rank is None else self.pid_of(rank)
        if pid is not None and self.process.poll() is None:
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """All of its processes."""
        kill(family([self.process.pid, *(pid for pid, _ in forked(self._listed))]))

    def end(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(HANGS_AFTER_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
            return -1000


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Complete lines of an audit log."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Story:
    """A folder, what happens in it, and the account of it.

    Args:
        place: A folder of its own.
        data: Flags that name rows and tokenizer.
        python: Executable that starts runs.
        rng: Decides.
        tally: Counts.
        say: Prints a line.
    """

    def __init__(
        self,
        place: Path,
        data: list[str],
        python: str,
        rng: random.Random,
        tally: Tally,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.logs = place / "run", place / "logs"
        self.folder.mkdir(parents=True)
        self.logs.mkdir()
        self.data, self.python, self.rng, self.tally, self.say = data, python, rng, tally, say
        self.number = 0
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self.folder)]
        self.has_disk = os.geteuid() == 0 and subprocess.run(command).returncode == 0

    def close(self) -> None:
        """Give the disk back."""
        if self.has_disk:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def settings(self) -> list[str]:
        """Random ones, of those that may change between runs."""
        pick = self.rng.choice
        workers = pick([("thread", "1"), ("thread", "2"), ("process", "1")])
        args = ["--data.odb.token_budget", pick(["768", "1024", "2048"])]
        args += ["--data.odb.window", pick(["16", "64"]), "--data.odb.policy"]
        args += [pick(["sliding", "tumbling"]), "--data.odb.worker_method", workers[0]]
        args += ["--data.odb.num_workers", workers[1]]
        return [*args, "--checkpoint.interval", pick(["2", "3", "5"])]

    def start(self, args: list[str], limit: int | None = None, ranks: int | None = None) -> Running:
        """A run with random settings and ranks."""
        return Running(self, ranks or self.rng.choice([1, 2, 2]), [*self.settings(), *args], limit)

    def whole(self) -> set[int]:
        """Steps of the whole checkpoints, of those set aside while they are saved anew too."""
        folder = self.folder / "checkpoint"
        found = {step for step, path in steps_in(folder) if examine(step, path).problem is None}
        for path in folder.glob(f"{REPLACED}[0-9]*"):
            step = int(path.name.removeprefix(REPLACED))
            if examine(step, path).problem is None:
                found.add(step)
        return found

    def account(self, what: str, run: Running, before: set[int], *, killed: bool = False) -> int:
        """Judge a run that has ended: its exit code, its lines, the checkpoints that are left."""
        code = run.end()
        run.kill()
        self.tally.runs += 1
        self.tally.codes[code] += 1
        gone = before - self.whole()
        self.tally.whole_checkpoints_lost += len(gone)
        lines = run.err.read_text().splitlines()
        plain = code == 0 or (code in (2, 130, 143) and len(lines) == 1)
        if not plain and not killed:
            self.tally.unexplained += 1
        last = lines[-1][:160] if lines else ""
        odd = "" if plain or killed else "  UNEXPLAINED"
        self.say(f"{self.tally.runs:4d} {what}: exit code {code}{odd}  {last}")
        if gone:
            self.say(f"     LOST whole checkpoints {sorted(gone)}")
        return code

    def audit(self) -> None:
        """Count what the runs that led to the end have trained on."""
        kept: list[dict[str, Any]] = []
        for number in range(1, self.number + 1):
            lines = read_lines(self.logs / f"run-{number:03d}.rank0.jsonl")
            if not lines:
                continue
            since = lines[0]["resumed_from"]
            kept = [line for line in kept if line["step"] <= since]
            for path in sorted(self.logs.glob(f"run-{number:03d}.rank*.jsonl")):
                kept += [line for line in read_lines(path) if "step" in line]
        seen = Counter((line["epoch"], index) for line in kept for index in line["indices"])
        lost = sum((0, index) not in seen for index in range(NUM_ROWS))
        repeated = sum(count - 1 for count in seen.values())
        self.tally.lost += lost
        self.tally.repeated += repeated
        self.say(f"     audit: lost {lost}, repeated {repeated}, of {NUM_ROWS} samples")


assert sys.platform == "linux", "the chaos script reads /proc"

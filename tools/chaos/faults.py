"""What goes wrong: each a function that runs a story's next run, and does it to that."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tools.chaos.story import DISK_MB, Running, Story


def undisturbed(story: Story) -> int:
    """Nothing."""
    before = story.whole()
    return story.account("undisturbed", story.start([]), before)


def stopped(story: Story) -> int:
    """A signal, to the launcher or to one rank, at a random step or moment."""
    before, run = story.whole(), story.start([])
    signum = story.rng.choice([signal.SIGTERM, signal.SIGINT])
    rank = story.rng.choice([None, 0, 1])
    _wait(story, run)
    run.send(signum, rank)
    to = "the launcher" if rank is None else f"rank {rank}"
    return story.account(f"{signum.name} to {to}", run, before)


def stopped_twice(story: Story) -> int:
    """A second signal soon after the first."""
    before, run = story.whole(), story.start([])
    _wait(story, run)
    run.send(signal.SIGTERM)
    time.sleep(story.rng.uniform(0.0, 1.5))
    run.send(signal.SIGTERM)
    return story.account("SIGTERM twice", run, before)


def out_of_time(story: Story) -> int:
    """A time limit of its own."""
    before = story.whole()
    run = story.start(["--data.stop_after_s", f"{story.rng.uniform(1, 8):.1f}"])
    return story.account("time limit", run, before)


def killed(story: Story) -> int:
    """SIGKILL to everything."""
    before, run = story.whole(), story.start([])
    _wait(story, run)
    run.kill()
    return story.account("SIGKILL to all", run, before, killed=True)


def rank_killed(story: Story) -> int:
    """SIGKILL to one rank."""
    before, run = story.whole(), story.start([], ranks=2)
    run.wait_for_step(story.rng.randint(1, 20))
    rank = story.rng.randint(0, 1)
    run.send(signal.SIGKILL, rank)
    return story.account(f"SIGKILL to rank {rank}", run, before)


def damaged(story: Story) -> int:
    """The newest checkpoints are damaged before the run; one whole one stays."""
    whole = sorted(story.whole(), reverse=True)
    for step in whole[: story.rng.randint(0, max(0, len(whole) - 1))]:
        _damage(story, story.folder / "checkpoint" / f"step-{step}")
    before, run = story.whole(), story.start([])
    if story.rng.random() < 0.5:
        _wait(story, run)
        run.send(signal.SIGTERM)
    return story.account("damaged checkpoints", run, before)


def disk_full(story: Story) -> int:
    """The disk fills up during the run; there is space again afterwards."""
    if not story.has_disk:
        return file_limit(story)
    used = sum(f.stat().st_size for f in story.folder.rglob("*") if f.is_file()) >> 20
    _resize(story, used + story.rng.randint(1, 12))
    before = story.whole()
    code = story.account("full disk", story.start([]), before)
    _resize(story, DISK_MB + used)
    return code


def file_limit(story: Story) -> int:
    """A limit on the size of files."""
    before = story.whole()
    run = story.start([], limit=story.rng.randint(200_000, 8_000_000))
    return story.account("file size limit", run, before)


def other_data(story: Story) -> int:
    """A row is another one; it is put back afterwards."""
    before = story.whole()
    if not before:
        return undisturbed(story)  # nothing is compared where nothing was saved
    path = Path(story.data[1])
    text = path.read_text()
    path.write_text(text.replace("What is", "Who was", 1))
    try:
        return story.account("another row", story.start([]), before)
    finally:
        path.write_text(text)


def second_job(story: Story) -> int:
    """Another job in the same folder while the first one works."""
    before, run = story.whole(), story.start([])
    _wait(story, run)
    other = story.start([])
    code = story.account("a second job", other, before)
    run.send(signal.SIGTERM)
    return min(code, story.account("beside a second job", run, before))


def _wait(story: Story, run: Running) -> None:
    if story.rng.random() < 0.3:
        time.sleep(story.rng.uniform(0.5, 12.0))
    else:
        run.wait_for_step(story.rng.randint(1, 20))
        time.sleep(story.rng.uniform(0.0, 0.3))


def _damage(story: Story, path: Path) -> None:
    if not path.is_dir():
        return
    file = story.rng.choice(sorted(path.iterdir()))
    kind = story.rng.choice(["truncate", "remove", "zero"])
    size = file.stat().st_size
    if kind == "remove":
        file.unlink()
    elif kind == "truncate":
        os.truncate(file, story.rng.randint(0, max(0, size - 1)))
    else:
        file.write_bytes(bytes(size))


def _resize(story: Story, megabytes: int) -> None:
    options = f"remount,size={megabytes}m"
    subprocess.run(["mount", "-o", options, str(story.folder)], check=True)


FAULTS: dict[Callable[[Story], int], int] = {  # with how often each is drawn
    undisturbed: 1,
    stopped: 5,
    stopped_twice: 2,
    out_of_time: 2,
    killed: 4,
    rank_killed: 3,
    damaged: 4,
    disk_full: 3,
    file_limit: 2,
    other_data: 1,
    second_job: 1,
}

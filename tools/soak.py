"""Kills and resumes a real run many times, then audits that every sample came once an epoch.

Each life of the run is a gloo world of one to three processes with random settings. It writes a
checkpoint every few steps and a log of what it delivered, until SIGKILL hits all ranks at a random
moment. The next life goes on from the checkpoint. What counts as delivered is what a life had
logged up to the checkpoint that a later life resumed from.
"""

import argparse
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
import torch.distributed as dist

from odb_nodes import OdbBatch, OdbLoader, odb_loader, pack_states, reshard_states, unpack_states

_CHECKPOINT_EVERY = 3
_HANGS_AFTER_S = 240.0
_CHECKPOINT = "checkpoint.bin"
_LAYOUTS: list[dict[str, Any]] = [
    {"layout": "padded"},
    {"layout": "packed"},
    {"layout": "packed", "cost": (1.0, 1e-3)},
    {"layout": "packed", "rows": 2, "cost": (1.0, 1e-3)},
]


class Lengths:
    """A map-style dataset of ``size`` samples with long-tailed lengths."""

    def __init__(self, size: int) -> None:
        lengths = np.random.default_rng(7).lognormal(3.0, 1.0, size)
        self._lengths = np.clip(lengths, 1, 400).astype(int).tolist()

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": np.full(self._lengths[index], index)}


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of the run: a world from its start to its kill.

    Attributes:
        number: Lives before this one.
        world_size: Ranks.
        settings: Of ``odb_loader``.
        to_the_end: Stop after the current epoch; else run until killed.
    """

    number: int
    world_size: int
    settings: dict[str, Any]
    to_the_end: bool = False


def random_life(number: int, rng: random.Random) -> Life:
    """A life with a random world size and settings."""
    workers = rng.choice([("thread", 0), ("thread", 0), ("thread", 2), ("process", 1)])
    settings = {
        "token_budget": rng.choice([512, 1024, 2048]),
        "window": rng.choice([16, 64, 256]),
        "policy": rng.choice(["sliding", "tumbling"]),
        **rng.choice(_LAYOUTS),
        "worker_method": workers[0],
        "num_workers": workers[1],
        "prefetch": rng.choice([0, 2]),
    }
    return Life(number=number, world_size=rng.randint(1, 3), settings=settings)


# In the ranks


def rank_main(life: Life, rank: int, folder: Path, num_samples: int) -> None:
    """Resume from the checkpoint and run until killed, or to the end of the epoch."""
    os.setpgid(0, 0)  # so that worker processes are killed along with their rank
    # Who is killed a moment later than the others complains of them: seen only if the soak fails.
    os.dup2(os.open(folder / f"stderr-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    store = f"file://{folder}/rendezvous-{life.number}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=life.world_size)
    loader = odb_loader(
        Lengths(num_samples),
        rank=rank,
        world_size=life.world_size,
        process_group=dist.new_group(backend="gloo") if life.world_size > 1 else None,
        seed=3,
        **life.settings,
    )
    if (folder / _CHECKPOINT).exists():
        _, states = read_checkpoint(folder)
        if len(states) != life.world_size:
            states = reshard_states(states, life.world_size)
        loader.load_state_dict(states[rank])
    step = 0
    with log_path(folder, life.number, rank).open("w") as log:
        while True:
            for batch in loader:
                step += 1
                _deliver(batch, step, log)
                if step % _CHECKPOINT_EVERY == 0:
                    _write_checkpoint(loader, folder, {"life": life.number, "step": step})
            if life.to_the_end:
                break
    loader.shutdown()
    dist.destroy_process_group()


def _deliver(batch: OdbBatch, step: int, log: TextIO) -> None:
    positions = [view.position for view in batch.info.views]
    line = {"step": step, "epoch": batch.info.epoch, "positions": positions}
    log.write(json.dumps(line) + "\n")
    log.flush()


def _write_checkpoint(loader: OdbLoader, folder: Path, where: dict[str, Any]) -> None:
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        draft = folder / "draft.bin"
        draft.write_bytes(pack_states([where, *states]))
        draft.replace(folder / _CHECKPOINT)


# In the parent


def log_path(folder: Path, life: int, rank: int) -> Path:
    """Where a rank logs what it delivered."""
    return folder / f"life-{life}-rank-{rank}.jsonl"


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Where in which life the checkpoint was written, and the states of that life's ranks."""
    where, *states = unpack_states((folder / _CHECKPOINT).read_bytes())
    return where, states


def live(life: Life, folder: Path, num_samples: int, rng: random.Random) -> None:
    """Run one life; kills all its ranks at a random moment, unless it may run to the end.

    Raises:
        RuntimeError: A rank ended by itself or hangs.
    """
    context = multiprocessing.get_context("fork")  # torch is imported already: no seconds of start
    ranks = [
        context.Process(target=rank_main, args=(life, rank, folder, num_samples))
        for rank in range(life.world_size)
    ]
    for process in ranks:
        process.start()
    try:
        if life.to_the_end:
            _wait_for_end(ranks, life)
            return
        if rng.random() < 0.9:  # else somewhere in the start
            _wait_for_first_step(ranks, life, folder)
        time.sleep(rng.uniform(0.0, 0.5))
        dead = [process.exitcode for process in ranks if process.exitcode is not None]
        if dead:
            raise RuntimeError(f"{life}: ranks ended by themselves with exit codes {dead}")
    finally:
        for process in ranks:
            _kill(process)


def _kill(process: Any) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _wait_for_first_step(ranks: list[Any], life: Life, folder: Path) -> None:
    logs = [log_path(folder, life.number, rank) for rank in range(life.world_size)]
    deadline = time.monotonic() + _HANGS_AFTER_S
    while not all(log.exists() and log.stat().st_size for log in logs):
        if any(process.exitcode is not None for process in ranks):
            raise RuntimeError(f"{life}: a rank ended before its first step")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{life}: no first step after {_HANGS_AFTER_S} s")
        time.sleep(0.01)


def _wait_for_end(ranks: list[Any], life: Life) -> None:
    deadline = time.monotonic() + _HANGS_AFTER_S
    for rank, process in enumerate(ranks):
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode != 0:
            raise RuntimeError(f"{life}: rank {rank} ended with {process.exitcode}, or hangs")


@dataclass
class Audit:
    """What was delivered for good.

    Attributes:
        last_step: By life, the last step that a later life did not run again.
        counts: How often each ``(epoch, position)`` was delivered.
    """

    last_step: dict[int, int] = field(default_factory=dict)
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)

    def resumed_from(self, where: dict[str, Any]) -> None:
        """A life went on from here: what came after it in the lives before is void."""
        self.last_step[where["life"]] = where["step"]

    def read(self, folder: Path, lives: list[Life]) -> None:
        """Count what the logs of all lives hold up to their last valid step."""
        for life in lives:
            last = sys.maxsize if life.to_the_end else self.last_step.get(life.number, 0)
            for rank in range(life.world_size):
                path = log_path(folder, life.number, rank)
                lines = path.read_text().splitlines() if path.exists() and last else []
                for record in map(json.loads, lines[:last]):  # one line a step
                    self.counts.update((record["epoch"], p) for p in record["positions"])

    def result(self, num_samples: int) -> tuple[int, int, int]:
        """Epochs run, samples lost and samples repeated in them."""
        epochs = max((epoch for epoch, _ in self.counts), default=-1) + 1
        lost = epochs * num_samples - len(self.counts)
        return epochs, lost, sum(count - 1 for count in self.counts.values())


def soak(kills: int, num_samples: int, seed: int, *, progress: bool = False) -> str:
    """Run, kill and resume; returns ``kills=... lost=... repeated=...`` and more counts."""
    rng, audit, lives = random.Random(seed), Audit(), []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(kills + 1):
            life = random_life(number, rng)
            if number == kills:
                life = Life(number=number, world_size=2, settings=life.settings, to_the_end=True)
            if (folder / _CHECKPOINT).exists():
                audit.resumed_from(read_checkpoint(folder)[0])
            lives.append(life)
            try:
                live(life, folder, num_samples, rng)
            except RuntimeError:
                for path in sorted(folder.glob("stderr-*")):
                    print(path.name, path.read_text(errors="replace")[-4000:], file=sys.stderr)
                raise
            if progress and number % 10 == 9:
                print(f"{number + 1} kills, {time.monotonic() - started:.0f} s", flush=True)
        audit.read(folder, lives)
    epochs, lost, repeated = audit.result(num_samples)
    worlds = Counter(life.world_size for life in lives)
    changes = sum(a.world_size != b.world_size for a, b in pairwise(lives))
    return (
        f"kills={kills} lost={lost} repeated={repeated} epochs={epochs} samples={num_samples} "
        f"lives_by_world_size={dict(sorted(worlds.items()))} world_size_changes={changes} "
        f"seconds={time.monotonic() - started:.0f}"
    )


def main() -> int:
    """Command line; exit code 1 if a sample was lost or repeated."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    result = soak(args.kills, args.samples, args.seed, progress=True)
    print(result)
    return int(" lost=0 repeated=0 " not in result)


if __name__ == "__main__":
    sys.exit(main())

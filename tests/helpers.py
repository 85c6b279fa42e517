"""Small data, worlds of ranks in threads, and worlds of ranks in processes with a watchdog."""

import contextlib
import multiprocessing
import queue
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from odb_nodes.testing import InProcessWorld

SKEWED = (3, 200, 7, 31, 90, 4, 4, 150, 12, 60)  # lengths that no two ranks share evenly


class Tokens:
    """A map-style dataset: sample i is ``lengths[i]`` tokens of value i, every third masked."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = np.full(self.lengths[index], index)
        labels = np.where(np.arange(len(ids)) % 3 == 0, -100, ids)
        return {"input_ids": ids, "labels": labels}


def random_lengths(count: int, seed: int = 0, longest: int = 120) -> list[int]:
    """Heavy-tailed lengths between 1 and ``longest``."""
    values = np.random.default_rng(seed).lognormal(2.5, 1.0, count)
    return [int(value) for value in np.clip(values, 1, longest)]


def positions(batches: Sequence[Any]) -> list[int]:
    """Positions of all samples in batches, in order of delivery."""
    return [view.position for batch in batches for view in batch.info.views]


def same_batches(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Infos and tensors are equal, bit by bit."""
    if [batch.info for batch in left] != [batch.info for batch in right]:
        return False
    return all(
        a.tensors.keys() == b.tensors.keys()
        and all(_equal(a.tensors[key], b.tensors[key]) for key in a.tensors)
        for a, b in zip(left, right, strict=True)
    )


def _equal(left: Any, right: Any) -> bool:
    return bool(left.equal(right) if hasattr(left, "equal") else left == right)


def run_loaders(
    size: int, build: Callable[..., Any], states: Sequence[Any] | None, steps: int | None
) -> list[tuple[list[Any], Any]]:
    """Batches and state of every rank, a thread each, after some steps or the whole pass.

    Args:
        size: Ranks.
        build: Makes a rank's loader from ``process_group``, ``rank`` and ``world_size``.
        states: Of all ranks to begin with, or None.
        steps: After which to break off, or None.
    """

    def work(rank: int, transport: Any) -> tuple[list[Any], Any]:
        with build(process_group=transport, rank=rank, world_size=size) as loader:
            if states is not None:
                loader.load_state_dict(states[rank])
            batches = []
            for batch in loader:
                batches.append(batch)
                if len(batches) == steps:
                    break
            return batches, loader.state_dict()

    return InProcessWorld(size).run(work)


def _rank_main(
    work: Callable[..., Any], rank: int, size: int, folder: str, results: Any, args: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test ends its ranks itself
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=60),
        )
        results.put((rank, True, work(rank, size, *args)))
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
        raise


def run_ranks(
    work: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = 120.0,
    may_die: Sequence[int] = (),
    preload: Sequence[str] = (),
) -> list[Any]:
    """``work(rank, size, *args)`` in one process per rank, in a real gloo world.

    Args:
        work: A module-level function; its result must pickle.
        size: Ranks.
        args: Of ``work``, after rank and size.
        timeout_s: What all of it may take.
        preload: Modules imported once, before the ranks are forked.
        may_die: Ranks that may end without a result (killed ones); theirs is None.
    Raises:
        AssertionError: A rank failed (with its traceback), or hangs (it is named, then killed).
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once, not by every rank: torch above all.
    context.set_forkserver_preload(["tests.helpers", *preload])
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_rank_main, args=(work, rank, size, folder, results, args), daemon=False
            )
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        try:
            found = _collect(ranks, results, timeout_s, set(may_die))
            for process in ranks:
                process.join(10)
            return found
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join()


def _collect(ranks: list[Any], results: Any, timeout_s: float, may_die: set[int]) -> list[Any]:
    found: dict[int, Any] = {}
    failures: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    while len(found) + len(failures) < len(ranks):
        try:
            rank, ok, value = results.get(timeout=0.2)
            (found if ok else failures)[rank] = value
        except queue.Empty:
            missing = [r for r in range(len(ranks)) if r not in found and r not in failures]
            dead = [r for r in missing if ranks[r].exitcode is not None]
            if set(missing) <= may_die and len(dead) == len(missing):
                break
            lost = [r for r in dead if r not in may_die and results.empty()]
            assert not lost, f"rank {lost} died with exit code {ranks[lost[0]].exitcode}"
            assert time.monotonic() < deadline, f"rank {missing} hangs after {timeout_s} s"
    assert not failures, "\n".join(f"rank {r} failed:\n{text}" for r, text in failures.items())
    return [found.get(rank) for rank in range(len(ranks))]


def children_of(pid: int) -> list[int]:
    """Process ids of all living descendants."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            for child in path.read_text().split():
                found += [int(child), *children_of(int(child))]
    return found

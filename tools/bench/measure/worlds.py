"""A world of gloo ranks in processes, and a meter on its collectives."""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

_COUNTED = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast")


def run_world(work: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """``work(rank, size, *args)`` in one process a rank; what it returns must be JSON.

    Args:
        work: A module-level function.
        size: Ranks.
        args: Of ``work``, after rank and size.
    Raises:
        ProcessRaisedException: A rank failed; carries its traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank_main, (work, size, folder, args), nprocs=size, start_method="fork")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def _rank_main(
    rank: int, work: Callable[..., Any], size: int, folder: str, args: tuple[Any, ...]
) -> None:
    os.environ["ODB_ITERATOR_STARTUP_JITTER_SEC"] = "0"  # the reference sleeps at random else
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=300),
    )
    result = work(rank, size, *args)
    dist.barrier()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def in_child(work: Callable[..., Any], *args: Any) -> Any:
    """``work(*args)`` in a process of its own; what it returns must be JSON."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        start_processes(_child_main, (work, out, args), nprocs=1, start_method="fork")
        return json.loads(out.read_text())


def _child_main(index: int, work: Callable[..., Any], out: Path, args: tuple[Any, ...]) -> None:
    out.write_text(json.dumps(work(*args)))


class Meter:
    """Counts payload bytes and calls of this rank's collectives, also in forked children."""

    def __init__(self) -> None:
        self._bytes = multiprocessing.Value("q", 0)
        self._calls = multiprocessing.Value("q", 0)

    @property
    def bytes(self) -> int:
        """Bytes this rank put into collectives."""
        return int(self._bytes.value)

    @property
    def calls(self) -> int:
        """Collectives this rank took part in."""
        return int(self._calls.value)

    @contextmanager
    def reading(self) -> Iterator["Meter"]:
        """Count within this block."""
        originals = {name: getattr(dist, name) for name in _COUNTED}
        for name, function in originals.items():
            setattr(dist, name, self._counting(function))
        try:
            yield self
        finally:
            for name, function in originals.items():
                setattr(dist, name, function)

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            tensors = [value for value in args if isinstance(value, torch.Tensor)]
            sent = tensors[-1]  # all_gather_into_tensor names its output first
            with self._bytes.get_lock(), self._calls.get_lock():
                self._bytes.value += sent.numel() * sent.element_size()
                self._calls.value += 1
            return function(*args, **kwargs)

        return counted

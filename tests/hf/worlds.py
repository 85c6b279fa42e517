"""Worlds of ranks that have transformers and its friends imported already: a second to start."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from tests.helpers import run_ranks

# Imported once per test process, in a server that every rank is forked from.
PRELOADED = ["hf_integration", "trl", "peft", "accelerate", "deepspeed"]
LIMIT_S = 240.0


def world(work: Callable[..., Any], size: int, *args: Any, may_die: Sequence[int] = ()) -> Any:
    """``work(rank, size, *args)`` on every rank, as torchrun would start it; their results."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the server starts
    return run_ranks(
        _as_torchrun,
        size,
        work,
        args,
        timeout_s=LIMIT_S,
        may_die=may_die,
        preload=PRELOADED,
    )


def _as_torchrun(rank: int, size: int, work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in local.items()})
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", ACCELERATE_USE_CPU="true")
    return work(rank, size, *args)

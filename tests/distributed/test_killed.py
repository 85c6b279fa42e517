"""A rank that is killed or hangs: the survivors get an error in bounded time, and end."""

import contextlib
import os
import signal
import time
from typing import Any

import pytest
import torch.distributed as dist

from odb_nodes import PeerFailedError, odb_loader
from tests.helpers import Tokens, random_lengths, run_ranks

TIMEOUT_S = 3.0


def lose_a_peer(rank: int, size: int, signal_number: int) -> tuple[str, float]:
    """The last rank stops at step 3; returns the survivors' error and how long it took."""
    pids: list[Any] = [None] * size
    dist.all_gather_object(pids, os.getpid())
    group = dist.new_group(backend="gloo")
    ranks: dict[str, Any] = {"process_group": group, "rank": rank, "world_size": size}
    dataset = Tokens(random_lengths(2000))
    with odb_loader(
        dataset, token_budget=256, window=16, timeout_s=TIMEOUT_S, num_workers=1, **ranks
    ) as loader:
        iterator = iter(loader)
        for batch in iterator:
            if batch.info.step == 3:
                break
        if rank == size - 1:
            os.kill(os.getpid(), signal_number)
        started = time.monotonic()
        with pytest.raises(PeerFailedError) as lost:
            list(iterator)
        seconds = time.monotonic() - started
    with contextlib.suppress(ProcessLookupError):  # a stopped rank would stay for ever
        os.kill(pids[-1], signal.SIGKILL)
    return str(lost.value), seconds


@pytest.mark.parametrize(
    ("signal_number", "size"), [(signal.SIGKILL, 3), (signal.SIGSTOP, 2), (signal.SIGSTOP, 3)]
)
def test_a_lost_peer_is_an_error_that_names_the_round(signal_number: int, size: int) -> None:
    results = run_ranks(lose_a_peer, size, signal_number, timeout_s=60, may_die=[size - 1])
    for text, seconds in results[:-1]:
        assert "epoch 0, round" in text
        assert f"timeout_s={TIMEOUT_S:g}" in text
        assert seconds < TIMEOUT_S + 5

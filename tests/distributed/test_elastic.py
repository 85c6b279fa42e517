"""Another world size between real gloo ranks."""

from collections import Counter
from typing import Any

import pytest
import torch.distributed as dist

from odb_nodes import odb_loader, pack_states, reshard_states, unpack_states, verify_states
from tests.helpers import Tokens, positions, random_lengths, run_ranks

COUNT = 150


def run_part(rank: int, size: int, blob: bytes | None, steps: int | None) -> tuple[Any, Any]:
    """Some steps on one rank; returns the positions and, after a break, the blob of all ranks."""
    loader = odb_loader(
        Tokens(random_lengths(COUNT)),
        token_budget=256,
        window=16,
        rank=rank,
        world_size=size,
        process_group=dist.new_group(backend="gloo") if size > 1 else None,
    )
    if blob is not None:
        states = unpack_states(blob)
        loader.load_state_dict(reshard_states(states, size)[rank])
    batches = []
    with loader:
        for batch in loader:
            batches.append(batch)
            if len(batches) == steps:
                break
        states = [None] * size
        dist.all_gather_object(states, loader.state_dict())
    return positions(batches), pack_states(states)


@pytest.mark.timeout(600)
def test_two_one_four_three_ranks_share_one_epoch_and_all_hold_the_same_blob() -> None:
    seen: Counter[int] = Counter()
    blob = None
    for size, steps in ((2, 2), (1, 2), (2, 1), (4, 1), (3, None)):
        results = run_ranks(run_part, size, blob, steps)
        assert len({blob for _, blob in results}) == 1
        blob = results[0][1]
        assert verify_states(unpack_states(blob), COUNT) == "exact"
        seen.update(position for found, _ in results for position in found)
        assert max(seen.values()) == 1
        assert (len(seen) < COUNT) == (steps is not None)

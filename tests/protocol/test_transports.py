"""Every transport passes the same conformance test: one rank, threads, and real gloo ranks."""

from typing import Any

import pytest
import torch.distributed as dist

from odb_nodes import odb_loader
from odb_nodes.protocol.transport import GlooTransport, SingleTransport, Transport
from odb_nodes.testing import InProcessWorld, check_collectives
from tests.helpers import Tokens, positions, random_lengths, run_ranks


def test_a_single_rank_passes() -> None:
    check_collectives(SingleTransport())
    assert isinstance(SingleTransport(), Transport)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_in_one_process_pass(size: int) -> None:
    InProcessWorld(size, timeout_s=30).run(lambda _, transport: check_collectives(transport))


def gloo_rank(rank: int, size: int) -> str:
    group: Any = dist.new_group(backend="gloo")
    check_collectives(GlooTransport(group, timeout_s=30))
    first = GlooTransport(group, timeout_s=30)
    told = ""
    try:
        odb_loader([1], token_budget=1, process_group=group)
    except ValueError as error:
        told = str(error)
    first.close()
    with odb_loader(Tokens([3, 4, 5]), token_budget=8, process_group=group) as loader:
        assert (loader.align.transport.rank, loader.align.transport.world_size) == (rank, size)
        assert len(list(loader)) > 0
    try:
        odb_loader([1], token_budget=1)
    except ValueError as error:
        told += str(error)
    return told


@pytest.mark.slow
@pytest.mark.distributed
def test_gloo_ranks_pass_and_a_group_serves_one_loader_at_a_time() -> None:
    for told in run_ranks(gloo_rank, 2):
        assert "process_group is used by another loader" in told
        assert "torch.distributed runs 2 processes and none of rank" in told


def test_a_transport_of_ones_own_is_taken_and_gives_rank_and_world_size() -> None:
    data = Tokens(random_lengths(40))

    def work(_: int, transport: Any) -> list[int]:
        with odb_loader(data, token_budget=200, window=8, transport=transport) as loader:
            return positions(list(loader))

    found = InProcessWorld(2).run(work)
    assert sorted(found[0] + found[1]) == list(range(40))
    assert found[0]
    assert found[1]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"rank": 1, "world_size": 2}, "needs process_group"),
        ({"world_size": 2}, "needs process_group"),
        ({"rank": 2, "world_size": 2}, "rank must be below 2"),
        ({"rank": -1}, "rank must be an integer of at least 0"),
        ({"process_group": 3}, "must be a gloo ProcessGroup, got int"),
        ({"transport": SingleTransport(), "rank": 1}, "has rank 0 of 1, got rank=1"),
        ({"transport": SingleTransport(), "process_group": 3}, "either process_group or transport"),
    ],
    ids=str,
)
def test_ranks_and_groups_that_do_not_fit_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        odb_loader(Tokens([1]), token_budget=10, **changes)

"""The protocol on real gloo ranks, four of them: join, closure, quota, IDLE, bytes."""

from typing import Any

import pytest
import torch.distributed as dist

from odb_nodes import PadCollate, odb_loader
from tests.helpers import Tokens, positions, random_lengths, run_ranks

SIZE = 4
LENGTHS = [(1, 6, 60, 250)[index % 4] for index in range(201)]  # unshuffled, one kind a rank

CASES: dict[str, tuple[list[int], dict[str, Any]]] = {
    "skewed sliding": (LENGTHS, {"shuffle": False, "window": 8}),
    "skewed tumbling": (LENGTHS, {"shuffle": False, "policy": "tumbling", "window": 16}),
    "narrow": (random_lengths(103), {"window": 4}),
    "small": ([5, 9], {}),
    "none": ([], {}),
    "closure": (random_lengths(61), {"join": False}),
    "quota": (random_lengths(61), {"join": False, "sample_quota": 150}),
    "skip": (LENGTHS, {"shuffle": False, "idle": "skip", "window": 8}),
    "packed": (random_lengths(61), {"collate": PadCollate(layout="packed")}),
}


def all_cases(rank: int, size: int) -> dict[str, Any]:
    found = {}
    for name, (lengths, changes) in CASES.items():
        ranks: dict[str, Any] = {
            "process_group": dist.new_group(backend="gloo"),
            "rank": rank,
            "world_size": size,
        }
        settings: dict[str, Any] = {"token_budget": 256, "window": 64, **changes}
        with odb_loader(Tokens(lengths), num_workers=1, **ranks, **settings) as loader:
            batches = list(loader)
            masked = [bool((b.tensors["labels"] == -100).all()) for b in batches if b.info.idle]
            found[name] = {
                "infos": [batch.info for batch in batches],
                "positions": positions(batches),
                "masked": all(masked),
                **loader.exchange_stats(),
            }
    return found


@pytest.fixture(scope="module")
def world() -> list[dict[str, Any]]:
    return run_ranks(all_cases, SIZE, timeout_s=200.0)


@pytest.mark.parametrize(
    "name", ["skewed sliding", "skewed tumbling", "narrow", "small", "none", "packed"]
)
def test_joined_ranks_run_equal_steps_and_emit_every_sample_once(
    world: list[dict[str, Any]], name: str
) -> None:
    assert len({len(rank[name]["infos"]) for rank in world}) == 1
    seen = [position for rank in world for position in rank[name]["positions"]]
    assert sorted(seen) == list(range(len(CASES[name][0])))
    for step in zip(*(rank[name]["infos"] for rank in world), strict=True):
        assert not all(info.idle for info in step)
        for total in ("num_samples", "num_tokens", "num_loss_tokens"):
            own = sum(getattr(info, total) for info in step)
            assert {getattr(info, f"total_{total}") for info in step} == {own}
    assert all(rank[name]["masked"] for rank in world)


def test_an_exchange_is_72_bytes_a_rank_and_24_for_the_totals_of_a_step(
    world: list[dict[str, Any]],
) -> None:
    for name in sorted(set(CASES) - {"skip", "quota"}):  # there not all steps are emitted
        for rank in world:
            told = rank[name]
            expected = 72 * told["rounds"] + 24 * len(told["infos"])
            if all(other[name]["positions"] for other in world):
                assert told["bytes"] == expected
            else:  # a rank that has no sample borrows a filler
                assert told["bytes"] > expected - 72
            assert told["wait_s"] > 0


def test_closure_and_quota_end_on_the_same_step_without_an_idle_one(
    world: list[dict[str, Any]],
) -> None:
    for name in ("closure", "quota"):
        assert len({len(rank[name]["infos"]) for rank in world}) == 1
        assert not any(info.idle for rank in world for info in rank[name]["infos"])
    totals = [info.total_num_samples for info in world[0]["quota"]["infos"]]
    assert sum(totals) >= 150 > sum(totals[:-1])


def test_skipped_idle_steps_are_left_out_and_nothing_else(world: list[dict[str, Any]]) -> None:
    seen = [position for rank in world for position in rank["skip"]["positions"]]
    assert sorted(seen) == list(range(len(LENGTHS)))
    assert not any(info.idle for rank in world for info in rank["skip"]["infos"])
    assert len({len(rank["skip"]["infos"]) for rank in world}) > 1

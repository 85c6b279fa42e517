"""What every rank sees when one fails, dies, hangs, differs or leaves: real gloo ranks."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from odb_nodes import odb_loader
from tests.helpers import Tokens, children_of, positions, random_lengths, run_ranks

COUNT = 200
BAD = 77  # the dataset index that fails, on whatever rank has it
SOON_S = 5.0


class UserError(Exception):
    """An exception with more than a message, which must arrive as it was raised."""


class BadTokens(Tokens):
    """A dataset whose sample ``BAD`` raises."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == BAD:
            raise UserError("dataset", index)
        return super().__getitem__(index)


def bad_transform(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] == BAD:
        raise UserError("transform", BAD)
    return row


def bad_collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    if any(sample["input_ids"][0] == BAD for sample in samples):
        raise UserError("collate", BAD)
    return {"input_ids": torch.zeros(1)}


def killed_transform(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def build(rank: int, size: int, transform: Any = None, **changes: Any) -> Any:
    """A loader on a gloo group of its own."""
    settings: dict[str, Any] = {"token_budget": 256, "window": 16, "timeout_s": 20.0, **changes}
    dataset = settings.pop("dataset", None) or Tokens(random_lengths(COUNT))
    group = settings.pop("group", None) or dist.new_group(backend="gloo")
    ranks: dict[str, Any] = {"process_group": group, "rank": rank, "world_size": size}
    return odb_loader(dataset, transform, **ranks, **settings)


def told(error: BaseException, started: float) -> dict[str, Any]:
    """An error as plain values."""
    return {
        "type": type(error).__name__,
        "args": error.args,
        "notes": " ".join(getattr(error, "__notes__", [])),
        "seconds": time.monotonic() - started,
    }


def outcome(work: Callable[[], Any]) -> dict[str, Any]:
    """What ``work`` raised, or its result."""
    started = time.monotonic()
    try:
        return {"type": None, "result": work(), "seconds": time.monotonic() - started}
    except Exception as error:
        return told(error, started)


def left_behind(before: set[threading.Thread], children: set[int]) -> list[str]:
    """Threads and processes that were not there before and do not end within 5 s."""
    deadline = time.monotonic() + SOON_S
    while True:
        found = [thread.name for thread in threading.enumerate() if thread not in before]
        found += [f"process {pid}" for pid in set(children_of(os.getpid())) - children]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


# Each scenario: (rank, size) -> what happened. Several share one world, for starting one is slow.


def failing_stage(rank: int, size: int, stage: str, prefetch: int, num_workers: int = 0) -> Any:
    changes: dict[str, Any] = {"prefetch": prefetch, "num_workers": num_workers}
    if stage == "dataset":
        changes["dataset"] = BadTokens(random_lengths(COUNT))
    if stage == "collate":
        changes["collate"] = bad_collate
    with build(rank, size, bad_transform if stage == "transform" else None, **changes) as loader:
        return outcome(lambda: len(list(loader)))


def abandoned_collate(rank: int, size: int) -> Any:
    """Rank 0 is slow; the failing rank does nothing more with its loader after the error."""
    loader = build(rank, size, collate=bad_collate, steps_per_round=1)

    def train() -> int:
        for batch in loader:
            if rank == 0 and batch.info.step % 4 == 0:
                time.sleep(0.1)
        return 0

    found = outcome(train)
    found["open"] = loader.align.exchange.is_open
    dist.barrier()
    loader.shutdown()
    return found


def died_worker(rank: int, size: int) -> Any:
    workers = {"num_workers": 1, "worker_method": "process", "multiprocessing_context": "fork"}
    with build(rank, size, killed_transform, **workers) as loader:
        return outcome(lambda: len(list(loader)))


def other_settings(rank: int, size: int, name: str, values: tuple[Any, Any]) -> Any:
    changes = {name: values[rank == size - 1]}
    if name == "count":
        changes = {"dataset": Tokens(random_lengths(changes["count"]))}
    epoch = changes.pop("epoch", 0)
    with build(rank, size, **changes) as loader:
        loader.set_epoch(epoch)
        return outcome(lambda: len(list(loader)))


def one_leaves(rank: int, size: int) -> Any:
    with build(rank, size) as loader:
        if rank:
            return outcome(lambda: len(list(loader)))
        next(iter(loader))
    return None


def one_raises_while_training(rank: int, size: int) -> Any:
    def train() -> int:
        with build(rank, size) as loader:
            for batch in loader:
                if rank == 0 and batch.info.step == 2:
                    raise UserError("training", 2)
        return 0

    return outcome(train)


def all_break_off(rank: int, size: int, prefetch: int, num_workers: int) -> Any:
    seen = []
    with build(rank, size, prefetch=prefetch, num_workers=num_workers) as loader:
        for epoch in range(20):
            for batch in loader:
                assert batch.info.epoch == epoch
                if batch.info.step == epoch % 11:
                    break
        for _ in range(2):
            seen.append(positions(list(loader)))
    return seen


def beside_the_trainer(rank: int, size: int) -> Any:
    """The trainer's own collectives, on the default group and another, at every step."""
    own: Any = dist.new_group(backend="gloo")
    sums = []
    with build(rank, size) as loader:
        for batch in loader:
            total = torch.tensor([batch.info.num_samples])
            dist.all_reduce(total)
            again = torch.tensor([batch.info.num_samples])
            dist.all_reduce(again, group=own)
            sums.append((int(total), int(again), batch.info.total_num_samples))
    return all(a == b == c for a, b, c in sums) and sum(a for a, _, _ in sums) == COUNT


SCENARIOS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        f"{stage} {prefetch} {num_workers}": (failing_stage, (stage, prefetch, num_workers))
        for stage in ("transform", "dataset", "collate")
        for prefetch, num_workers in ((0, 0), (2, 0), (2, 2))
    },
    "abandoned": (abandoned_collate, ()),
    "worker": (died_worker, ()),
    "token_budget": (other_settings, ("token_budget", (256, 255))),
    "window": (other_settings, ("window", (16, 17))),
    "join": (other_settings, ("join", (True, False))),
    "policy": (other_settings, ("policy", ("sliding", "tumbling"))),
    "quota": (other_settings, ("sample_quota", (50, 51))),
    "epoch": (other_settings, ("epoch", (0, 1))),
    "seed": (other_settings, ("seed", (0, 1))),
    "shuffle": (other_settings, ("shuffle", (True, False))),
    "count": (other_settings, ("count", (COUNT, COUNT + 1))),
    "leaves": (one_leaves, ()),
    "raises": (one_raises_while_training, ()),
    "break 0 0": (all_break_off, (0, 0)),
    "break 2 0": (all_break_off, (2, 0)),
    "break 3 2": (all_break_off, (3, 2)),
    "trainer": (beside_the_trainer, ()),
}


def all_scenarios(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    dist.barrier()
    before, children = set(threading.enumerate()), set(children_of(os.getpid()))
    for name, (scenario, args) in SCENARIOS.items():
        started = time.monotonic()
        found[name] = scenario(rank, size, *args)
        left = left_behind(before, children)
        found[f"{name}: left"], found[f"{name}: s"] = left, time.monotonic() - started
        dist.barrier()
    return found


@pytest.fixture(scope="module", params=[2, 3])
def world(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run_ranks(all_scenarios, request.param, timeout_s=200.0)


def failed_and_others(world: list[dict[str, Any]], name: str, error: str) -> tuple[int, list[Any]]:
    """The one rank that raised ``error``, and what the others got."""
    types = [rank[name]["type"] for rank in world]
    assert types.count(error) == 1, [rank[name] for rank in world]
    return types.index(error), [rank[name] for rank in world if rank[name]["type"] != error]


@pytest.mark.parametrize("mode", ["0 0", "2 0", "2 2"])
@pytest.mark.parametrize("stage", ["transform", "dataset", "collate"])
def test_the_failing_rank_raises_the_users_exception_and_all_others_name_it(
    world: list[dict[str, Any]], stage: str, mode: str
) -> None:
    name = f"{stage} {mode}"
    failed, others = failed_and_others(world, name, "UserError")
    own = world[failed][name]
    assert own["args"] == (stage, BAD)
    named = re.compile(rf"while (preparing dataset\[{BAD}\]|collating .*\b{BAD}\b)")
    assert named.search(own["notes"])
    for other in others:
        assert other["type"] == "PeerFailedError"
        assert f"rank {failed} failed: UserError" in other["args"][0]
        assert named.search(other["args"][0])
        assert other["seconds"] < SOON_S


def test_a_failure_is_told_before_it_is_raised(world: list[dict[str, Any]]) -> None:
    failed, others = failed_and_others(world, "abandoned", "UserError")
    assert not world[failed]["abandoned"]["open"]
    for other in others:
        assert f"rank {failed} failed: UserError" in other["args"][0]


def test_a_worker_process_that_dies_on_one_rank_is_an_error_on_all(
    world: list[dict[str, Any]],
) -> None:
    failed, others = failed_and_others(world, "worker", "WorkerDiedError")
    for other in others:
        assert other["type"] == "PeerFailedError"
        assert f"rank {failed} failed: WorkerDiedError" in other["args"][0]
        assert other["seconds"] < SOON_S


@pytest.mark.parametrize(
    "name",
    ["token_budget", "window", "join", "policy", "quota", "epoch", "seed", "shuffle", "count"],
)
def test_settings_that_differ_between_ranks_are_an_error_on_all_of_them(
    world: list[dict[str, Any]], name: str
) -> None:
    for rank in world:
        assert rank[name]["type"] == "PeerFailedError", rank[name]
        assert "the ranks do not agree: " in rank[name]["args"][0]
        assert rank[name]["seconds"] < SOON_S


@pytest.mark.parametrize("name", ["leaves", "raises"])
def test_a_rank_that_leaves_early_is_named_on_the_others(
    world: list[dict[str, Any]], name: str
) -> None:
    for rank in world[1:]:
        assert rank[name]["type"] == "PeerFailedError", rank[name]
        assert "rank 0 closed its loader" in rank[name]["args"][0]
        assert rank[name]["seconds"] < SOON_S
    if name == "raises":
        assert world[0][name]["args"] == ("training", 2)


@pytest.mark.parametrize("mode", ["0 0", "2 0", "3 2"])
def test_all_ranks_may_break_off_at_any_step_and_go_on_with_whole_epochs(
    world: list[dict[str, Any]], mode: str
) -> None:
    for epoch in range(2):
        seen = [position for rank in world for position in rank[f"break {mode}"][epoch]]
        assert sorted(seen) == list(range(COUNT))


def test_the_trainers_own_collectives_run_at_the_same_time(world: list[dict[str, Any]]) -> None:
    assert all(rank["trainer"] for rank in world)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_no_thread_and_no_process_is_left_behind(world: list[dict[str, Any]], name: str) -> None:
    assert [rank[f"{name}: left"] for rank in world] == [[]] * len(world)

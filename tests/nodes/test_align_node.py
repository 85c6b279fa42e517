"""AlignNode on worlds of ranks in threads: steps, totals, closure, quota, IDLE, coverage."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from odb_nodes import AlignNode, GroupingNode, SampleMapper, SamplerView, odb_loader
from odb_nodes.testing import InProcessWorld
from tests.helpers import (
    SKEWED,
    Tokens,
    positions,
    random_lengths,
    run_loaders,
    same_batches,
)

POLICIES = ["sliding", "tumbling"]
BUDGET = 256


def run_world(size: int, lengths: Sequence[int], passes: int = 1, **changes: Any) -> list[Any]:
    """The batches of every rank, over all passes."""

    def work(rank: int, transport: Any) -> list[Any]:
        ranks = {"process_group": transport, "rank": rank, "world_size": size}
        settings = {"token_budget": BUDGET, "window": 8, "prefetch": 0, **changes}
        with odb_loader(Tokens(lengths), **ranks, **settings) as loader:
            return [batch for _ in range(passes) for batch in loader]

    return InProcessWorld(size).run(work)


def everything(ranks: Sequence[Sequence[Any]]) -> list[int]:
    return sorted(position for batches in ranks for position in positions(batches))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 4, 7, 61])
def test_joined_ranks_run_the_same_steps_and_emit_every_sample_once(
    policy: str, size: int, count: int
) -> None:
    ranks = run_world(size, random_lengths(count), policy=policy)
    assert len({len(batches) for batches in ranks}) == 1
    assert everything(ranks) == list(range(count))
    for step in zip(*ranks, strict=True):
        assert len({batch.info.step for batch in step}) == 1
        assert not all(batch.info.idle for batch in step)


@pytest.mark.parametrize("policy", POLICIES)
def test_wildly_different_lengths_on_four_ranks_still_give_equal_steps(policy: str) -> None:
    lengths = [(1, 6, 60, 250)[index % 4] for index in range(301)]
    ranks = run_world(4, lengths, policy=policy, shuffle=False)
    assert len({len(batches) for batches in ranks}) == 1
    assert everything(ranks) == list(range(301))
    for batch in (batch for batches in ranks for batch in batches):
        assert batch.info.padded_tokens <= BUDGET or batch.info.num_samples == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_totals_are_the_sums_over_the_ranks(policy: str) -> None:
    ranks = run_world(3, SKEWED * 5, policy=policy)
    for step in zip(*ranks, strict=True):
        for name in ("num_samples", "num_tokens", "num_loss_tokens"):
            own = [getattr(batch.info, name) for batch in step]
            assert {getattr(batch.info, f"total_{name}") for batch in step} == {sum(own)}
        for batch in step:
            loss_tokens = int((batch.tensors["labels"] != -100).sum())
            assert batch.info.num_loss_tokens == loss_tokens
            assert batch.info.num_samples == len(batch.info.views)


@pytest.mark.parametrize("totals", [True, False])
@pytest.mark.parametrize(("size", "window"), [(2, 4), (2, 64), (5, 4), (5, 64)])
def test_an_exchange_costs_the_same_few_bytes_whatever_the_world_and_the_window(
    size: int, window: int, totals: bool
) -> None:
    def work(rank: int, transport: Any) -> tuple[Any, int]:
        view = SamplerView(200, rank=rank, world_size=size)
        groups = GroupingNode(
            SampleMapper(view, Tokens(random_lengths(200))), BUDGET, window=window
        )
        node = AlignNode(groups, process_group=transport, totals=totals)
        steps = len(list(node))
        node.shutdown()
        return transport.stats, steps

    for stats, steps in InProcessWorld(size).run(work):
        assert stats.rounds > 1
        reports = stats.bytes - (24 * steps if totals else 0)
        assert reports == 72 * stats.rounds


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 50, 61])
def test_closure_ends_on_the_same_step_without_any_idle_one(policy: str, count: int) -> None:
    ranks = run_world(3, random_lengths(count), policy=policy, join=False)
    assert len({len(batches) for batches in ranks}) == 1
    seen = everything(ranks)
    assert len(set(seen)) == len(seen)
    assert not any(batch.info.idle for batches in ranks for batch in batches)
    if count < 3:
        assert seen == []  # a rank without a share closes the pass at once
    if count == 61:
        shares = [[p for p in range(count) if p % 3 == rank] for rank in range(3)]
        left = [len(set(share) - set(seen)) for share in shares]
        assert min(left) == 0  # some rank is done, which is why it ended


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("quota", [1, 40, 150])
def test_a_quota_ends_at_the_first_step_that_reaches_it(
    policy: str, join: bool, quota: int
) -> None:
    ranks = run_world(2, random_lengths(61), policy=policy, join=join, sample_quota=quota)
    totals = [batch.info.total_num_samples for batch in ranks[0]]
    assert totals == [batch.info.total_num_samples for batch in ranks[1]]
    assert sum(totals) >= quota > sum(totals[:-1])
    epochs = {batch.info.epoch for batch in ranks[0]}
    assert max(epochs) >= (quota - 1) // 61  # as many passes as that takes


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("join", [True, False])
def test_a_quota_and_its_progress_are_part_of_the_state(policy: str, join: bool) -> None:
    changes: dict[str, Any] = {"policy": policy, "join": join, "sample_quota": 150}
    settings: dict[str, Any] = {"token_budget": BUDGET, "window": 8, "prefetch": 0}

    def run(states: Any, stop: int | None) -> list[Any]:
        build = partial(odb_loader, Tokens(random_lengths(61)), **settings, **changes)
        return run_loaders(2, build, states, stop)

    whole = [batches for batches, _ in run(None, None)]
    for stop in range(1, len(whole[0]), 3):
        head = run(None, stop)
        rest = run([state for _, state in head], None)
        for rank in range(2):
            assert same_batches(head[rank][0] + rest[rank][0], whole[rank])


def test_an_endless_quota_over_an_empty_dataset_ends() -> None:
    assert run_world(2, [], sample_quota=10) == [[], []]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_step_is_a_real_batch_without_any_label(policy: str) -> None:
    lengths = [200, 3] * 20 + [200]  # rank 0 needs a step for each of its samples, and has more
    batches = run_world(2, lengths, policy=policy, shuffle=False)[1]
    idle = [batch for batch in batches if batch.info.idle]
    assert idle
    for batch in idle:
        assert batch.tensors["input_ids"].shape == (1, 3)
        assert (batch.tensors["labels"] == -100).all()
        info = batch.info
        assert (info.num_samples, info.num_tokens, info.padded_tokens, info.views) == (0, 0, 0, ())
        assert info.num_loss_tokens == 0 < info.total_num_loss_tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_skipped_idle_steps_are_the_only_ones_missing(policy: str) -> None:
    emitted = run_world(3, SKEWED * 3, policy=policy)
    skipped = run_world(3, SKEWED * 3, policy=policy, idle="skip")
    for with_idle, without in zip(emitted, skipped, strict=True):
        assert same_batches([batch for batch in with_idle if not batch.info.idle], without)


def test_a_rank_without_a_share_idles_on_a_sample_of_another() -> None:
    ranks = run_world(3, [5])
    assert [len(batches) for batches in ranks] == [1, 1, 1]
    assert sorted(batches[0].info.idle for batches in ranks) == [False, True, True]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_rank_runs_the_same_collectives(policy: str) -> None:
    world = InProcessWorld(4)

    def work(rank: int, transport: Any) -> None:
        ranks = {"process_group": transport, "rank": rank, "world_size": 4}
        with odb_loader(
            Tokens(SKEWED * 7), token_budget=BUDGET, window=8, prefetch=0, policy=policy, **ranks
        ) as loader:
            list(loader)

    world.run(work)
    calls = [transport.calls for transport in world.transports]
    assert calls[0]
    assert all(other == calls[0] for other in calls)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_ranks_may_break_off_together_hundreds_of_times(prefetch: int) -> None:
    def work(rank: int, transport: Any) -> list[Any]:
        ranks = {"process_group": transport, "rank": rank, "world_size": 2}
        with odb_loader(
            Tokens(random_lengths(61)), token_budget=BUDGET, window=8, prefetch=prefetch, **ranks
        ) as loader:
            for epoch in range(100):
                for batch in loader:
                    assert batch.info.epoch == epoch
                    if batch.info.step == epoch % 7:
                        break
            return list(loader)

    assert everything(InProcessWorld(2).run(work)) == list(range(61))


def test_no_round_holds_much_more_than_half_a_window_however_short_the_samples_are() -> None:
    num_samples, window, group = 6000, 512, 40

    def work(rank: int, transport: Any) -> list[list[int]]:
        view = SamplerView(num_samples, rank=rank, world_size=2)
        groups = GroupingNode(SampleMapper(view, Tokens([1] * num_samples)), group, window=window)
        node = AlignNode(groups, process_group=transport)
        return [node.get_state()["pending"]["sizes"] for _ in node]

    for sizes in InProcessWorld(2).run(work):
        assert sizes[0] == []  # the first step waits for no other
        while_open = sizes[: (num_samples // 2 - window) // group - 8]
        assert len(while_open) > 50
        assert window // 2 <= max(map(sum, while_open)) + group <= window // 2 + group


def test_nothing_is_exchanged_once_a_pass_was_left() -> None:
    transport = InProcessWorld(1).transports[0]
    groups = GroupingNode(SampleMapper(SamplerView(50), Tokens(random_lengths(50))), 40, window=4)
    node = AlignNode(groups, steps_per_round=1, process_group=transport)
    next(node)
    node.leave()
    calls = len(transport.calls)
    with pytest.raises(StopIteration):
        next(node)
    assert len(transport.calls) == calls


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"policy": "other"}, "policy"),
        ({"idle": "sleep"}, "idle"),
        ({"steps_per_round": 0}, "steps_per_round"),
        ({"sample_quota": 0}, "sample_quota"),
        ({"sample_quota": 5, "totals": False}, "totals=True"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"process_group": "gloo"}, "process_group"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], word: str) -> None:
    groups = GroupingNode(SampleMapper(SamplerView(3), Tokens([1, 2, 3])), BUDGET)
    with pytest.raises(ValueError, match=word):
        AlignNode(groups, **changes)
    with pytest.raises(ValueError, match="GroupingNode"):
        AlignNode(SamplerView(3))  # type: ignore[arg-type]

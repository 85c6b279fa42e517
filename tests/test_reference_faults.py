"""Sixteen failures seen in online-dynamic-batching 0.1.2, and what happens here in their place.

The number in each docstring is the failure. The ninth, a rank that is killed, needs real processes:
``distributed/test_killed.py``; and so does the rest of ``distributed/test_failures.py``.
"""

import multiprocessing
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from odb_nodes import (
    AlignNode,
    GroupingNode,
    OdbLoader,
    PadCollate,
    PeerFailedError,
    SampleError,
    StreamView,
    odb_loader,
)
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens, positions, random_lengths

COUNT = 61
FORK = {"num_workers": 1, "worker_method": "process", "multiprocessing_context": "fork"}


class Broken(Tokens):
    """Sample 40 cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 40:
            raise OSError("unreadable", index)
        return super().__getitem__(index)


def build(dataset: Any = None, transform: Any = None, **changes: Any) -> OdbLoader:
    dataset = dataset if dataset is not None else Tokens(random_lengths(COUNT))
    return odb_loader(dataset, transform, **{"token_budget": 256, "window": 8, **changes})


def on_ranks(size: int, work: Callable[[OdbLoader], Any], **changes: Any) -> list[Any]:
    """``work(loader)`` on every rank of a world."""

    def body(rank: int, transport: Any) -> Any:
        ranks = {"process_group": transport, "rank": rank, "world_size": size}
        with build(**ranks, **changes) as loader:
            return work(loader)

    return InProcessWorld(size).run(body)


def outcome(loader: OdbLoader) -> Any:
    """Its batches, or what it raised."""
    try:
        return list(loader)
    except Exception as error:
        return error


def assert_whole(ranks: list[Any], count: int = COUNT) -> None:
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(p for batches in ranks for p in positions(batches)) == list(range(count))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_ranks_stay_aligned_under_every_start_method(context: str) -> None:
    """1: alignment was off without a word."""
    workers = {**FORK, "multiprocessing_context": context}
    assert_whole(on_ranks(2, list, **workers))


@pytest.mark.parametrize("count", [3, 4, 5, COUNT])
def test_three_ranks_with_uneven_shares_run_the_same_collectives(count: int) -> None:
    """2: one rank left out a collective, and all crashed."""
    world = InProcessWorld(3)

    def work(rank: int, transport: Any) -> Any:
        ranks = {"process_group": transport, "rank": rank, "world_size": 3}
        with build(Tokens(random_lengths(count)), **ranks) as loader:
            return list(loader)

    assert_whole(world.run(work), count)
    calls = [transport.calls for transport in world.transports]
    assert calls[0] == calls[1] == calls[2]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, FORK])
def test_a_sample_that_cannot_be_read_is_an_error_in_one_process(workers: dict[str, Any]) -> None:
    """3: a deadlock without an error."""
    with (
        build(Broken(random_lengths(COUNT)), **workers) as loader,
        pytest.raises(OSError, match="unreadable") as raised,
    ):
        list(loader)
    assert raised.value.args == ("unreadable", 40)
    assert "dataset[40]" in raised.value.__notes__[0]


def test_a_sample_that_cannot_be_read_on_one_rank_is_an_error_on_all() -> None:
    """4: that rank hung, and the others timed out."""
    results = on_ranks(3, outcome, dataset=Broken(random_lengths(COUNT)))
    assert [type(result) for result in results].count(OSError) == 1
    others = [str(result) for result in results if isinstance(result, PeerFailedError)]
    assert len(others) == 2
    assert all("failed: OSError" in text and "dataset[40]" in text for text in others)


def test_no_epoch_and_no_break_leaves_a_process() -> None:
    """5: one process was left by each epoch, two by each break."""
    with build(**FORK) as loader:
        for _ in range(3):
            list(loader)
            next(iter(loader))
            assert len(multiprocessing.active_children()) <= 1
    assert multiprocessing.active_children() == []


def test_breaking_off_and_iterating_again_works_at_every_step() -> None:
    """6: a ValueError in some runs."""

    def work(loader: OdbLoader) -> Any:
        for epoch in range(10):
            for batch in loader:
                if batch.info.step == epoch % 5:
                    break
        return list(loader)

    assert_whole(on_ranks(2, work))


@pytest.mark.parametrize("count", [0, 1, 2, 5, COUNT])
def test_closure_with_uneven_or_empty_shares_ends_on_the_same_step(count: int) -> None:
    """7: a crash."""
    ranks = on_ranks(3, list, dataset=Tokens(random_lengths(count)), join=False)
    assert len({len(batches) for batches in ranks}) == 1


def test_ranks_with_uneven_shares_get_as_many_batches_each() -> None:
    """8: 115 and 82 batches, on which a plain DDP loop hangs."""
    lengths = [120 if index % 2 else 3 for index in range(COUNT)]
    assert_whole(on_ranks(2, list, dataset=Tokens(lengths), shuffle=False))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_the_collate_raises_is_shown(prefetch: int) -> None:
    """10: the user's exception was not shown."""

    def collate(samples: list[Any]) -> Any:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")

    with build(collate=collate, prefetch=prefetch) as loader, pytest.raises(UnicodeDecodeError):
        list(loader)


def test_empty_samples_are_counted_and_ranks_end_equal() -> None:
    """11: dropped without a word, and 38 against 35 batches."""
    lengths = [0 if index % 3 == 0 else 50 for index in range(COUNT)]

    def work(loader: OdbLoader) -> Any:
        return len(list(loader)), loader.align.source.all_drops()

    ranks = on_ranks(2, work, dataset=Tokens(lengths))
    assert ranks[0][0] == ranks[1][0]
    assert sum(drops.get("empty", 0) for _, drops in ranks) == lengths.count(0)


def test_a_collate_that_gives_nothing_still_makes_a_step() -> None:
    """12: 40 against 39 batches."""
    ranks = on_ranks(2, list, collate=lambda samples: {})
    assert_whole(ranks)
    assert all(batch.tensors == {} for batches in ranks for batch in batches)


def test_samples_without_input_ids_are_an_error_that_names_their_keys() -> None:
    """13: no batch, and no error."""
    with build(transform=lambda row: {"tokens": [1]}) as loader:
        error = outcome(loader)
    assert isinstance(error, SampleError)
    assert "'tokens'" in str(error)


def test_no_workers_are_no_workers() -> None:
    """14: zero workers became four."""
    with build(num_workers=0) as loader:
        list(loader)
        next(iter(loader))
        assert multiprocessing.active_children() == []


def test_an_iterable_dataset_works_and_can_be_iterated_again() -> None:
    """15: an AssertionError."""
    rows = [{"input_ids": [7] * length} for length in random_lengths(COUNT)]
    groups = GroupingNode(StreamView(rows), 256, window=8)
    with OdbLoader(AlignNode(groups), collate=PadCollate()) as loader:
        for _ in range(2):
            assert_whole([list(loader)])


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, FORK])
def test_iterating_draws_nothing_from_the_users_random_state(workers: dict[str, Any]) -> None:
    """16: every iterator drew from it."""

    def state() -> Any:
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    with build(**workers) as loader:
        before = state()
        for _ in range(2):
            list(loader)
        assert state() == before

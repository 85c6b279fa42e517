"""Resuming with other settings, other data or another world size; what people lost elsewhere."""

import logging
from functools import partial
from typing import Any

import pytest

from odb_nodes import (
    AlignNode,
    GroupingNode,
    PadCollate,
    SampleError,
    StateError,
    StreamView,
    describe_state,
    reshard_states,
    verify_states,
)
from tests.helpers import Tokens, positions, random_lengths, run_loaders, same_batches
from tests.states import COUNT, DATA, build, make_node, state_after, whole_epoch, world

CHANGES: list[dict[str, Any]] = [
    {"token_budget": 150},
    {"window": 5},
    {"policy": "tumbling"},
    {"steps_per_round": 2},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_after_out_of_memory_new_settings_lose_nothing_and_say_so_once(
    changes: dict[str, Any], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    head, states = world(size, None, 2)
    with caplog.at_level(logging.INFO):
        rest = run_loaders(size, partial(build, **changes), states, None)
    assert sorted(head + [p for batches, _ in rest for p in positions(batches)]) == list(
        range(COUNT)
    )
    told = [record for record in caplog.records if "settings changed" in record.message]
    assert len([record for record in told if record.levelno >= logging.INFO]) == 1
    (name, value) = next(iter(changes.items()))
    assert str(value) in told[0].message, (name, told[0].message)


def test_another_collate_gives_the_same_samples_in_its_own_shape() -> None:
    head, state = state_after(3)
    with build(collate=PadCollate(layout="packed")) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
    assert [b.info for b in head + rest] == [b.info for b in whole_epoch()]
    assert all(batch.tensors["input_ids"].shape[0] == 1 for batch in rest)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"dataset": Tokens(random_lengths(COUNT + 1))}, "dataset length 90, this run has 91"),
        ({"seed": 4}, "seed 0, this run has 4"),
        ({"shuffle": False}, "shuffle True, this run has False"),
    ],
    ids=["length", "seed", "shuffle"],
)
def test_a_dataset_swapped_or_ordered_anew_before_resume_is_noticed(
    changes: dict[str, Any], word: str
) -> None:
    _, state = state_after(3)
    with build(**changes) as loader, pytest.raises(StateError, match=word):
        loader.load_state_dict(state)


def test_a_state_for_the_other_kind_of_source_is_refused() -> None:
    for saver, reader in (("align", "stream_align"), ("stream_align", "align")):
        node = make_node(saver, 0)
        next(node)
        with pytest.raises(StateError, match="kind of source that saved it"):
            make_node(reader, 0).reset(node.state_dict())


# What people elsewhere lost


@pytest.mark.parametrize(("old", "new"), [(4, 2), (4, 8), (2, 4), (2, 1)])
def test_another_data_parallel_size_gets_exactly_what_was_not_delivered(old: int, new: int) -> None:
    first, states = world(old, None, 1)
    done = sum(describe_state(state)["emitted"] for state in states)
    resharded = reshard_states(states, new)
    assert sum(describe_state(state)["emitted"] for state in resharded) == done == len(first)
    assert verify_states(resharded, COUNT) == "exact"
    second, _ = world(new, resharded, None)
    assert sorted(first + second) == list(range(COUNT))


def test_one_ranks_share_is_never_loaded_in_place_of_all() -> None:
    _, states = world(2, None, 1)
    for wrong in states:
        with (
            build() as loader,
            pytest.raises(StateError, match="world_size 2, this run has 1"),
        ):
            loader.load_state_dict(wrong)
    with pytest.raises(StateError, match="ranks 0 to 1"):
        reshard_states(states[:1], 1)


def test_a_checkpoint_at_the_end_of_an_epoch_gives_the_next_epoch_in_full() -> None:
    with build() as loader:
        first, second = list(loader), list(loader)
    _, state = state_after(len(first))
    with build() as loader:
        loader.load_state_dict(state)
        assert same_batches(list(loader), second)


def test_set_epoch_after_a_load_does_not_disturb_it_and_works_afterwards() -> None:
    head, state = state_after(2)
    with build() as loader:
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert same_batches(head + list(loader), whole_epoch())
        loader.set_epoch(5)
        batches = list(loader)
    assert {batch.info.epoch for batch in batches} == {5}
    assert sorted(positions(batches)) == list(range(COUNT))


def test_what_a_checkpoint_cannot_hold_fails_at_the_first_sample() -> None:
    rows = [{"input_ids": [1, 2], "image": object()}]
    node = AlignNode(GroupingNode(StreamView(rows), 64))
    with pytest.raises(SampleError, match=r"data\['image'\] is a object, which a checkpoint"):
        next(node)


def test_padded_and_real_tokens_are_counted_apart_and_survive_a_resume() -> None:
    whole = whole_epoch()
    _, state = state_after(4)
    told = describe_state(state)
    assert told["num_tokens"] == sum(batch.info.num_tokens for batch in whole[:4])
    assert told["padded_tokens"] == sum(batch.info.padded_tokens for batch in whole[:4])
    with build() as loader:
        loader.load_state_dict(state)
        list(loader)
        told = describe_state(loader.state_dict())
    assert told["num_tokens"] == sum(DATA.lengths)
    assert told["padded_tokens"] == sum(batch.info.padded_tokens for batch in whole)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_finite_dataset_is_one_epoch_at_any_data_parallel_size(size: int) -> None:
    found, states = world(size, None, None)
    assert sorted(found) == list(range(COUNT))
    assert all(describe_state(state)["remaining"] == 0 for state in states)

"""States: exact, small, cheap, plain; and what people elsewhere lost by them."""

import copy
import logging
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torchdata.nodes import Loader, ParallelMapper

from odb_nodes import (
    AlignNode,
    GroupingNode,
    PadCollate,
    SampleError,
    SampleMapper,
    SamplerView,
    StateError,
    StreamView,
    describe_state,
    odb_loader,
    pack_states,
    reshard_states,
    unpack_states,
    verify_states,
)
from tests.helpers import ThreadWorld, Tokens, positions, random_lengths, same_batches

COUNT = 90
DATA = Tokens(random_lengths(COUNT))
WORKERS = [("thread", 0, 0), ("thread", 2, 2), ("process", 2, 1)]  # method, workers, prefetch


def rows() -> list[dict[str, Any]]:
    return [DATA[index] for index in range(COUNT)]


def build(dataset: Any = DATA, **changes: Any) -> Any:
    settings: dict[str, Any] = {"token_budget": 256, "window": 16, "prefetch": 0}
    return odb_loader(dataset, **{**settings, **changes})


def run(loader: Any, steps: int) -> list[Any]:
    iterator = iter(loader)
    return [next(iterator) for _ in range(steps)]


def state_after(steps: int, **changes: Any) -> tuple[list[Any], dict[str, Any]]:
    with build(**changes) as loader:
        head = run(loader, steps)
        return head, loader.state_dict()


def whole_epoch(**changes: Any) -> list[Any]:
    with build(**changes) as loader:
        return list(loader)


# Exact


@pytest.mark.parametrize("saver", WORKERS, ids=str)
@pytest.mark.parametrize("reader", WORKERS, ids=str)
def test_workers_and_prefetch_on_either_side_change_nothing(saver: Any, reader: Any) -> None:
    names = ("worker_method", "num_workers", "prefetch")
    head, state = state_after(4, **dict(zip(names, saver, strict=True)))
    with build(**dict(zip(names, reader, strict=True))) as loader:
        loader.load_state_dict(state)
        assert same_batches(head + list(loader), whole_epoch())


def test_two_states_in_a_row_are_equal_and_disturb_nothing() -> None:
    with build(prefetch=2) as loader:
        batches = []
        for batch in loader:
            assert loader.state_dict() == loader.state_dict()
            batches.append(batch)
    assert same_batches(batches, whole_epoch())


def test_a_state_loads_twice_and_the_callers_dict_stays_as_it_was() -> None:
    head, state = state_after(3)
    before = copy.deepcopy(state)
    for _ in range(2):
        with build() as loader:
            loader.load_state_dict(state)
            assert same_batches(head + list(loader), whole_epoch())
            loader.load_state_dict(state)
            assert same_batches(head + list(loader), whole_epoch())
    assert state == before


def test_save_and_resume_twice_within_an_epoch_goes_on_and_not_from_zero() -> None:
    batches: list[Any] = []
    state = None
    for _ in range(3):
        with build() as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches += run(loader, 3)
            state = loader.state_dict()
    with build() as loader:
        loader.load_state_dict(state)
        assert same_batches(batches + list(loader), whole_epoch())


def _scramble(value: Any) -> None:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        if isinstance(item, dict | list):
            _scramble(item)
        else:
            value[key] = "scrambled"


@pytest.mark.parametrize("by_position", [True, False])
def test_a_state_never_aliases_live_data(by_position: bool) -> None:
    def node() -> AlignNode:
        source: Any = SampleMapper(SamplerView(COUNT), DATA) if by_position else StreamView(rows())
        return AlignNode(GroupingNode(source, 256, window=16))

    expected = [group.info for group in node()]
    scrambled = node()
    infos = []
    for group in scrambled:
        infos.append(group.info)
        state = scrambled.state_dict()
        again = node()
        again.reset(state)
        _scramble(state)
        if len(infos) % 4 == 0:
            assert infos + [later.info for later in again] == expected
    assert infos == expected


def test_states_are_plain_values_and_survive_packing() -> None:
    def check(value: Any) -> None:
        assert type(value) in (int, str, bytes, list, dict, bool, type(None)), type(value)
        inner: Any = value.values() if isinstance(value, dict) else value
        for item in inner if isinstance(value, dict | list) else ():
            check(item)

    with build(Tokens([0, *random_lengths(COUNT - 1)]), seed=np.int64(3)) as loader:
        for _ in loader:
            state = loader.state_dict()
            check(state)
            assert unpack_states(pack_states([state, state])) == [state, state]


class Counting(Tokens):
    """Counts how often each index is read."""

    def __init__(self, lengths: Any) -> None:
        super().__init__(lengths)
        self.reads: Counter[int] = Counter()

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads[index] += 1
        return super().__getitem__(index)


def test_a_resume_never_maps_a_delivered_sample_and_its_cost_is_flat() -> None:
    lengths = random_lengths(1200)
    costs = []
    for steps in (2, 20, 60):
        head, state = state_after(steps, dataset=Tokens(lengths))
        delivered = {view.index for batch in head for view in batch.info.views}
        dataset = Counting(lengths)
        with build(dataset) as loader:
            loader.load_state_dict(state)
            iterator = iter(loader)
            told = describe_state(state)
            # Held and pending samples, the filler, and the one that torchdata's Loader looks ahead.
            costs.append(dataset.reads.total() - told["held"] - told["pending"])
            rest = list(iterator)
        assert not delivered & set(dataset.reads)
        assert sorted(positions(head) + positions(rest)) == list(range(1200))
    assert max(costs) <= 40, costs


def _noisy(raw: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    noise = generator.integers(0, 1 << 30, len(raw["input_ids"]))
    return {"input_ids": noise, "labels": noise}


def test_a_rebuilt_sample_of_a_random_transform_is_the_same_sample() -> None:
    whole = whole_epoch(transform=_noisy, rng_seed=5)
    head, state = state_after(3, transform=_noisy, rng_seed=5)
    assert state["source"]["held"]
    for method, workers, prefetch in WORKERS:
        with build(
            transform=_noisy,
            rng_seed=5,
            worker_method=method,
            num_workers=workers,
            prefetch=prefetch,
        ) as loader:
            loader.load_state_dict(state)
            assert same_batches(head + list(loader), whole)
    assert not same_batches(whole, whole_epoch(transform=_noisy, rng_seed=6))


# Small and cheap


@pytest.mark.parametrize("window", [16, 1024, 4096])
def test_a_state_takes_8_bytes_a_held_sample_and_little_else(window: int) -> None:
    data = Tokens([3] * 9000)
    with build(data, window=window) as loader:
        for batch in loader:
            state = loader.state_dict()
            told = describe_state(state)
            size = len(pack_states([state]))
            assert size <= (64 << 10) + 8 * (told["held"] + told["pending"])
            assert size <= 4096 + 8 * (told["held"] + told["pending"])  # what we really need
            if batch.info.step == 20:
                break


def test_a_state_of_a_full_window_costs_less_than_packing_its_positions_twenty_times() -> None:
    source = SampleMapper(SamplerView(20_000), Tokens([9] * 20_000))
    node = AlignNode(GroupingNode(source, 256, window=4096))
    held = np.arange(4096).tolist()
    costs, yardstick = [], []
    for _ in range(40):
        next(node)
        started = time.perf_counter()
        node.state_dict()
        costs.append(time.perf_counter() - started)
        started = time.perf_counter()
        np.array(held).tobytes()
        yardstick.append(time.perf_counter() - started)
    assert np.median(costs) < 20 * np.median(yardstick), (np.median(costs), np.median(yardstick))


# Torchdata's own pattern


def _plain(item: Any) -> Any:
    if isinstance(item, torch.Tensor | np.ndarray):
        return item.tolist()
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return [_plain(value) for value in item]
    return item


def _same(item: Any) -> Any:
    return item


def make_node(kind: str, workers: int) -> Any:
    stream: Any = StreamView(rows())
    if workers:
        stream = ParallelMapper(stream, _same, num_workers=workers)
    if kind.startswith("stream"):
        source = stream
    else:
        source = SampleMapper(SamplerView(COUNT), DATA, num_workers=workers)
    if kind in ("stream", "mapper"):
        return source
    if kind == "view":
        return SamplerView(COUNT)
    groups = GroupingNode(source, 256, window=16)
    return groups if kind.endswith("grouping") else AlignNode(groups)


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "kind",
    ["view", "mapper", "grouping", "align", "stream", "stream_grouping", "stream_align"],
)
def test_a_node_resumes_as_torchdata_asks(kind: str, workers: int, restart: bool) -> None:
    loader: Any = Loader(make_node(kind, workers), restart_on_stop_iteration=restart)

    def half_and_rest() -> tuple[list[Any], list[Any], Any, Any]:
        iterator, half = iter(loader), []
        for _ in range(middle):
            half.append(_plain(next(iterator)))
        state = loader.state_dict()
        rest = _plain(list(iterator))
        return half, rest, state, loader.state_dict()

    middle = 2
    initial = loader.state_dict()
    half_0, rest_0, middle_0, end_0 = half_and_rest()
    half_1, rest_1, middle_1, _ = half_and_rest()
    assert len(half_0 + rest_0) > middle
    for state, expected in (
        (middle_0, [rest_0, half_1 + rest_1]),
        (middle_1, [rest_1]),
        (initial, [half_0 + rest_0, half_1 + rest_1]),
        (end_0, [half_1 + rest_1] if restart else [[], half_1 + rest_1]),
    ):
        loader.load_state_dict(state)
        for epoch in expected:
            assert _plain(list(loader)) == epoch
    fresh: Any = Loader(make_node(kind, workers), restart_on_stop_iteration=restart)
    fresh.load_state_dict(middle_1)
    assert _plain(list(fresh)) == rest_1


# Changed settings, changed data


CHANGES: list[dict[str, Any]] = [
    {"token_budget": 150},
    {"window": 5},
    {"policy": "paper"},
    {"steps_per_round": 2},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_after_out_of_memory_new_settings_lose_nothing_and_say_so_once(
    changes: dict[str, Any], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    def part(states: list[Any] | None, steps: int | None, **settings: Any) -> list[Any]:
        def work(rank: int, transport: Any) -> tuple[list[int], Any]:
            with build(process_group=transport, rank=rank, world_size=size, **settings) as loader:
                if states is not None:
                    loader.load_state_dict(states[rank])
                batches = []
                for batch in loader:
                    batches.append(batch)
                    if len(batches) == steps:
                        break
                return positions(batches), loader.state_dict()

        return ThreadWorld(size).run(work)

    head = part(None, 2)
    with caplog.at_level(logging.INFO):
        rest = part([state for _, state in head], None, **changes)
    assert sorted(p for found, _ in head + rest for p in found) == list(range(COUNT))
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
    with build(**changes) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match=word):
            iter(loader)


def test_a_state_for_the_other_kind_of_source_is_refused() -> None:
    for saver, reader in (("align", "stream_align"), ("stream_align", "align")):
        node = make_node(saver, 0)
        next(node)
        with pytest.raises(StateError, match="kind of source that saved it"):
            make_node(reader, 0).reset(node.state_dict())


# What people elsewhere lost


def world(size: int, states: list[Any] | None, steps: int | None) -> tuple[list[int], list[Any]]:
    def work(rank: int, transport: Any) -> tuple[list[int], Any]:
        with build(process_group=transport, rank=rank, world_size=size) as loader:
            if states is not None:
                loader.load_state_dict(states[rank])
            batches = []
            for batch in loader:
                batches.append(batch)
                if len(batches) == steps:
                    break
            return positions(batches), loader.state_dict()

    results = ThreadWorld(size).run(work)
    return [p for found, _ in results for p in found], [state for _, state in results]


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
        with build() as loader:
            loader.load_state_dict(wrong)
            with pytest.raises(StateError, match="world_size 2, this run has 1"):
                iter(loader)
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

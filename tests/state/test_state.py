"""States: exact, small, cheap and plain."""

import copy
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from odb_nodes import (
    AlignNode,
    GroupingNode,
    SampleMapper,
    SamplerView,
    StreamView,
    describe_state,
    pack_states,
    unpack_states,
)
from tests.helpers import Tokens, positions, random_lengths, same_batches
from tests.states import COUNT, DATA, WORKERS, build, rows, run, state_after, whole_epoch


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

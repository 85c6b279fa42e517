"""SampleMapper: what comes out, what is dropped, errors, and its state."""

import random
import re
from typing import Any

import numpy as np
import pytest
import torch

from odb_nodes import (
    SampleError,
    SampleMapper,
    SamplerView,
    StateError,
    View,
    odb_loader,
    pack_states,
    unpack_states,
)
from tests.helpers import Tokens, positions

COUNT = 30
PROCESSES = {"num_workers": 1, "method": "process", "multiprocessing_context": "fork"}
WORKERS = [{}, {"read_ahead": 4}, {"num_workers": 2}, PROCESSES]


class Counting(Tokens):
    """Remembers which samples were read."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__([1 + index % 7 for index in range(count)])
        self.read: list[int] = []

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        return super().__getitem__(index)


class AwkwardError(Exception):
    """Cannot be unpickled: its constructor wants something else."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def drop_every_third(row: dict[str, Any]) -> dict[str, Any] | None:
    return None if row["input_ids"][0] % 3 == 0 else row


def fail_on_ten(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] == 10:
        raise KeyError("ten")
    return row


def fail_awkwardly(row: dict[str, Any]) -> dict[str, Any]:
    raise AwkwardError(1, 2)


def leave(row: dict[str, Any]) -> dict[str, Any]:
    raise SystemExit(3)


def as_tensors(row: dict[str, Any]) -> dict[str, Any]:
    ids = torch.as_tensor(row["input_ids"])
    image = torch.full((2, 3), 0.5, dtype=torch.bfloat16)
    return {"input_ids": ids, "image": image, "text": "kept"}


def draw(row: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    return {"input_ids": row["input_ids"], "noise": int(generator.integers(1 << 40))}


def make(transform: Any = None, dataset: Any = None, **changes: Any) -> SampleMapper:
    dataset = dataset or Counting()
    return SampleMapper(SamplerView(len(dataset)), dataset, transform, **changes)


def drain(mapper: SampleMapper) -> list[Any]:
    try:
        return list(mapper)
    finally:
        mapper.shutdown()


@pytest.mark.parametrize("workers", WORKERS)
def test_samples_come_in_the_order_of_the_view_with_their_length(workers: dict[str, Any]) -> None:
    samples = drain(make(**workers))
    assert [sample.view for sample in samples] == list(SamplerView(COUNT))
    for sample in samples:
        assert sample.length == len(sample.data["input_ids"])
        assert sample.data["input_ids"][0] == sample.view.index


@pytest.mark.parametrize("workers", WORKERS)
def test_a_transform_that_returns_none_drops_the_sample_and_it_is_counted(
    workers: dict[str, Any],
) -> None:
    mapper = make(drop_every_third, **workers)
    indices = {sample.view.index for sample in drain(mapper)}
    assert indices == {index for index in range(COUNT) if index % 3}
    assert mapper.drops.counts == {"filtered": 10}


@pytest.mark.parametrize("workers", WORKERS)
def test_skipped_errors_are_counted_with_index_and_reason(workers: dict[str, Any]) -> None:
    mapper = make(fail_on_ten, on_error="skip", **workers)
    assert len(drain(mapper)) == COUNT - 1
    assert mapper.drops.counts == {"error": 1}
    assert list(mapper.drops.details) == [(10, "KeyError('ten')")]
    saved = mapper.state_dict()["drops"]
    assert saved["details"] == [[10, "KeyError('ten')"]]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_is_raised_as_the_user_raised_it_with_the_index_and_again(
    workers: dict[str, Any],
) -> None:
    mapper = make(fail_on_ten, **workers)
    for _ in range(2):
        with pytest.raises(KeyError, match="ten") as raised:
            list(mapper)
        assert "dataset[10]" in " ".join(raised.value.__notes__)
    mapper.shutdown()


def test_an_error_that_cannot_travel_between_processes_keeps_its_text() -> None:
    with pytest.raises(SampleError, match="AwkwardError: 1 and 2"):
        drain(make(fail_awkwardly, **PROCESSES))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_transform_that_calls_exit_is_an_error_not_a_hang(workers: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match=r"called sys\.exit"):
        drain(make(leave, **workers))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "a", "ids": [1]}, ["input_ids", "'ids', 'text'", "length="]),
        ([1, 2], ["input_ids", "list"]),
    ],
)
def test_a_sample_without_length_names_the_keys_there_are(row: Any, words: list[str]) -> None:
    with pytest.raises(SampleError) as raised:
        drain(make(lambda _: row))
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("value", [-1, 1.5, "7", None])
def test_a_length_must_be_a_natural_number(value: Any) -> None:
    with pytest.raises(SampleError, match="length must give an integer >= 0"):
        drain(make(length=lambda _: value))


@pytest.mark.parametrize("workers", [{}, PROCESSES])
def test_tensors_and_other_values_arrive_as_they_were(workers: dict[str, Any]) -> None:
    for sample in drain(make(as_tensors, **workers)):
        image, ids = sample.data["image"], sample.data["input_ids"]
        assert image.dtype == torch.bfloat16
        assert image.tolist() == [[0.5] * 3] * 2
        assert ids.dtype == torch.int64
        assert ids.tolist() == [sample.view.index] * sample.length
        assert sample.data["text"] == "kept"


@pytest.mark.parametrize("workers", WORKERS)
def test_seeded_randomness_depends_on_seed_epoch_and_position_only(workers: dict[str, Any]) -> None:
    def noise(rng_seed: int, passes: int = 1, **changes: Any) -> list[int]:
        mapper = make(draw, rng_seed=rng_seed, **changes)
        for _ in range(passes):
            mapper.reset()
            values = [sample.data["noise"] for sample in mapper]
        mapper.shutdown()
        return values

    assert noise(1, **workers) == noise(1)
    assert noise(1, **workers) != noise(2)
    assert noise(1, passes=2, **workers) == noise(1, passes=2) != noise(1)


@pytest.mark.parametrize("workers", WORKERS)
def test_resume_at_any_sample_gives_the_rest_and_reads_nothing_twice(
    workers: dict[str, Any],
) -> None:
    expected = [sample.view for sample in make()]
    for taken in range(0, COUNT + 1, 6 if workers else 1):  # every sample where it is cheap
        mapper = make(**workers)
        mapper.reset()
        for _ in range(taken):
            next(mapper)
        state = mapper.state_dict()
        mapper.shutdown()
        dataset = Counting()
        again = make(dataset=dataset)
        again.reset(state)
        assert [sample.view for sample in again] == expected[taken:]
        assert dataset.read == [view.index for view in expected[taken:]]


def test_rebuilding_gives_the_samples_of_the_views_in_their_order() -> None:
    mapper = make(draw, rng_seed=3)
    samples = list(mapper)
    chosen = [samples[index] for index in (7, 3, 29)]
    rebuilt = mapper.rebuild([sample.view for sample in chosen])
    assert [sample.data["noise"] for sample in rebuilt] == [s.data["noise"] for s in chosen]
    assert mapper.rebuild([]) == []


def test_a_sample_that_is_dropped_when_rebuilt_is_an_error() -> None:
    with pytest.raises(StateError, match="deterministic"):
        make(drop_every_third).rebuild([View(0, 0, 3)])


def test_the_users_random_state_is_not_touched() -> None:
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    with odb_loader(
        Counting(), draw, token_budget=20, window=4, num_workers=1, rng_seed=1
    ) as loader:
        assert sorted(positions(list(loader))) == list(range(COUNT))
        iter(loader)
    after = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    assert after == before


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_workers": -1}, "num_workers must be an integer of at least 0, got -1"),
        ({"num_workers": True}, "num_workers must be an integer of at least 0, got True"),
        ({"num_workers": 2.0}, "num_workers must be an integer of at least 0, got 2.0"),
        ({"num_workers": "2"}, "num_workers must be an integer of at least 0, got '2'"),
        ({"num_workers": None}, "num_workers must be an integer of at least 0, got None"),
        ({"num_workers": np.array([1, 2])}, "num_workers must be an integer of at least 0"),
        ({"read_ahead": np.float64(3)}, "read_ahead must be an integer of at least 0"),
        ({"read_ahead": np.bool_(True)}, "read_ahead must be an integer of at least 0"),
        ({"rng_seed": -1}, "rng_seed must be an integer of at least 0, got -1"),
        ({"rng_seed": 1.5}, "rng_seed must be an integer of at least 0, got 1.5"),
        ({"rng_seed": False}, "rng_seed must be an integer of at least 0, got False"),
        ({"rng_seed": 1 << 62}, "rng_seed must be below 4611686018427387904, got"),
        ({"timeout_s": 0}, "timeout_s must be a positive number, got 0"),
        ({"timeout_s": True}, "timeout_s must be a positive number, got True"),
        ({"timeout_s": float("inf")}, "timeout_s must be a positive number, got inf"),
        ({"timeout_s": float("nan")}, "timeout_s must be a positive number, got nan"),
        ({"timeout_s": "10"}, "timeout_s must be a positive number, got '10'"),
        ({"timeout_s": None}, "timeout_s must be a positive number, got None"),
        ({"persistent_workers": 1}, "persistent_workers must be True or False, got 1"),
        ({"method": "magic"}, "method must be 'thread' or 'process', got 'magic'"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'skip', got 'ignore'"),
        ({"multiprocessing_context": "tread"}, "'forkserver', got 'tread'"),
        ({"transform": 3}, "transform must be a function of a row, got int"),
        ({"length": "input_ids"}, "length must be a function of a sample's data, got str"),
        ({"dataset": iter(())}, "dataset must have __getitem__, got tuple_iterator"),
        ({"dataset": Counting(29)}, "view has 30 samples, the dataset 29"),
        ({"view": range(30)}, "view must be a SamplerView, got range"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], rule: str) -> None:
    given: dict[str, Any] = {"view": SamplerView(COUNT), "dataset": Counting(), **changes}
    with pytest.raises(ValueError, match=re.escape(rule)):
        SampleMapper(**given)


def test_numbers_of_numpy_do_as_well_and_go_into_the_state_as_plain_ones() -> None:
    numbers: dict[str, Any] = {
        "num_workers": np.int64(1),
        "rng_seed": np.uint8(7),
        "read_ahead": np.int32(4),
        "timeout_s": np.float32(60),
    }
    mapper = make(draw, **numbers)
    next(mapper)
    state = mapper.state_dict()
    mapper.shutdown()
    assert type(state["rng_seed"]) is int
    again = make(draw, **numbers)
    again.reset(unpack_states(pack_states([state]))[0])
    assert len(drain(again)) == COUNT - 1

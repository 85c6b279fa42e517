"""What dataset and transform draw from global generators depends on seed, epoch and position."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from odb_nodes import SampleMapper, SamplerView, StateError, odb_loader
from odb_nodes.workers.randomness import seed_generators, set_aside
from tests.helpers import Tokens, positions, same_batches

COUNT = 80
PROCESSES = {"num_workers": 3, "method": "process", "multiprocessing_context": "fork"}
WORKERS: list[dict[str, Any]] = [{}, {"read_ahead": 8}, {"num_workers": 3}, PROCESSES]


def draw(row: dict[str, Any], *_: Any) -> dict[str, Any]:
    """Draws from each global generator, and from NumPy's pairs of normal draws one."""
    values = [random.random(), np.random.rand(), np.random.normal(), float(torch.rand(()))]
    return {**row, "drawn": [random.gauss(0, 1), *values, *np.random.permutation(50).tolist()]}


class DrawingRows(Tokens):
    """The dataset draws, not the transform: a truncation whose length is random."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        keep = 1 + int(torch.randint(len(row["input_ids"]), ()))
        return {**row, "input_ids": row["input_ids"][:keep], "drawn": [keep, random.random()]}


def make(transform: Any = draw, dataset: Any = None, seed: int = 0, **changes: Any) -> SampleMapper:
    dataset = dataset or Tokens([9] * COUNT)
    return SampleMapper(SamplerView(COUNT, seed=seed), dataset, transform, **changes)


def drawn(mapper: SampleMapper, epochs: int = 1) -> list[dict[int, Any]]:
    found = []
    for _ in range(epochs):
        mapper.reset()
        found.append({sample.view.position: sample.data["drawn"] for sample in mapper})
    mapper.shutdown()
    return found


def one_of_each() -> list[float]:
    return [random.gauss(0, 1), np.random.normal(), np.random.rand(), float(torch.rand(()))]


@contextmanager
def nothing_drawn() -> Iterator[None]:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    random.gauss(0, 1), np.random.normal()  # each has the second of a pair at hand now
    yield
    after = random.gauss(0, 1), np.random.normal(), np.random.rand(), float(torch.rand(()))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    random.gauss(0, 1), np.random.normal()
    assert after == (
        random.gauss(0, 1),
        np.random.normal(),
        np.random.rand(),
        float(torch.rand(())),
    )


@pytest.mark.parametrize("source", ["transform", "dataset"])
@pytest.mark.parametrize("workers", WORKERS[1:])
def test_draws_are_those_of_every_other_kind_of_workers_and_new_in_every_epoch(
    source: str, workers: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"transform": draw}
    if source == "dataset":
        arguments = {"transform": None, "dataset": DrawingRows([9] * COUNT)}
    with nothing_drawn():
        first, second = drawn(make(**arguments), epochs=2)
        assert drawn(make(**arguments, **workers), epochs=2) == [first, second]
    assert first != second
    assert drawn(make(**arguments, seed=1)) != [first]
    if source == "transform":
        assert len({tuple(values) for values in first.values()}) == COUNT
        assert all(first[position] != second[position] for position in first)


@pytest.mark.parametrize("workers", WORKERS)
def test_rng_seed_decides_the_global_draws_too(workers: dict[str, Any]) -> None:
    assert drawn(make(rng_seed=5, seed=0, **workers)) == drawn(make(rng_seed=5, **workers))
    assert drawn(make(rng_seed=5, **workers)) != drawn(make(rng_seed=6, **workers))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sample_rebuilt_alone_has_the_draws_it_had(workers: dict[str, Any]) -> None:
    mapper = make(**workers)
    samples = list(mapper)
    chosen = [samples[place] for place in (70, 3, 41)]
    with nothing_drawn():
        rebuilt = make(**workers).rebuild([sample.view for sample in chosen])
    assert [s.data["drawn"] for s in rebuilt] == [s.data["drawn"] for s in chosen]
    mapper.shutdown()


@pytest.mark.parametrize("method", ["thread", "process"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_resumed_loader_gives_bit_identical_batches_of_random_lengths(
    method: str, prefetch: int
) -> None:
    def build(**changes: Any) -> Any:
        return odb_loader(
            DrawingRows([30] * COUNT),
            lambda row: {"input_ids": row["input_ids"]},
            token_budget=90,
            window=16,
            seed=3,
            **changes,
        )

    with build() as loader:
        whole = list(loader)
    workers = {"num_workers": 2, "worker_method": method, "multiprocessing_context": "fork"}
    with build(prefetch=prefetch, **workers) as loader:
        iterator = iter(loader)
        head = [next(iterator) for _ in range(4)]
        state = loader.state_dict()
    with nothing_drawn(), build(prefetch=prefetch, **workers) as loader:
        loader.load_state_dict(state)
        assert same_batches(head + list(loader), whole)
    assert sorted(positions(whole)) == list(range(COUNT))


def test_a_generator_of_another_kind_that_the_user_has_put_into_numpy_stays() -> None:
    from numpy.random.mtrand import get_bit_generator, set_bit_generator

    before, own = get_bit_generator(), np.random.PCG64(7)
    set_bit_generator(own)
    try:
        expected = np.random.PCG64(7).state
        assert drawn(make())
        assert get_bit_generator() is own
        assert own.state == expected
    finally:
        set_bit_generator(before)


def test_threads_say_that_draws_make_them_slow_and_what_to_do_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drawn(make(num_workers=2), epochs=3)
    told = [record.message for record in caplog.records if "worker processes" in record.message]
    assert len(told) == 1
    caplog.clear()
    drawn(make(), epochs=2)
    drawn(make(transform=lambda row: {**row, "drawn": 0}, num_workers=2))
    assert not caplog.records


def test_a_transform_that_draws_nothing_runs_beside_the_users_own_draws() -> None:
    mapper = make(transform=lambda row: {**row, "drawn": 0}, num_workers=2)
    with nothing_drawn():
        list(mapper)
    mapper.shutdown()


def test_setting_aside_names_the_generators_that_were_used() -> None:
    for use, name in (
        (random.random, "random"),
        (np.random.standard_normal, "numpy.random"),
        (lambda: torch.randn(1), "torch"),
    ):
        with nothing_drawn(), set_aside(3) as used:
            use()
        assert used == [name]
    seed_generators((1 << 64) - 1)


@pytest.mark.parametrize(("saved", "here"), [(1, 2), (None, 1), (1, None)])
def test_another_rng_seed_at_load_is_refused_naming_both(saved: Any, here: Any) -> None:
    mapper = make(rng_seed=saved)
    next(mapper)
    state = mapper.state_dict()
    with pytest.raises(StateError, match=f"rng_seed {saved}, this run has {here}"):
        make(rng_seed=here).reset(state)
    same = make(rng_seed=saved)
    same.reset(state)
    assert len(list(same)) == COUNT - 1


def test_a_state_from_before_rng_seeds_were_saved_still_loads() -> None:
    mapper = make()
    next(mapper)
    state = mapper.state_dict()
    del state["rng_seed"]
    for rng_seed in (None, 4):
        again = make(rng_seed=rng_seed)
        again.reset(state)
        assert len(list(again)) == COUNT - 1


@pytest.mark.parametrize("value", ["5", -1, True, 1.0])
def test_a_damaged_rng_seed_in_a_state_is_refused(value: Any) -> None:
    mapper = make()
    next(mapper)
    with pytest.raises(StateError, match="rng_seed"):
        make().reset({**mapper.state_dict(), "rng_seed": value})

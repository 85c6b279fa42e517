"""Cutting a window into groups: minimal, in order, exact at every block size, and fast enough."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_nodes.batching import ordered as ordered_module
from odb_nodes.batching.budget import Limit, TokenBudget
from odb_nodes.batching.window import Window, age_of, length_of, make_key

BUDGET = 12
lengths_lists = st.lists(st.integers(1, 15), max_size=25)


def filled(lengths: list[int], budget: TokenBudget | int = BUDGET) -> Window:
    window = Window(TokenBudget(budget) if isinstance(budget, int) else budget)
    for age, length in enumerate(lengths):
        window.add(make_key(length, age))
    return window


def by_age(window: Window) -> list[int]:
    return sorted(itertools.chain(*window.partition()), key=age_of)


def lengths_in(groups: list[list[int]]) -> list[list[int]]:
    return [[length_of(key) for key in group] for group in groups]


def fits(group: list[int], budget: int = BUDGET) -> bool:
    return len(group) == 1 or len(group) * max(map(length_of, group)) <= budget


def set_partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in set_partitions(items[1:]):
        yield [[items[0]], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [items[0], *rest[i]], *rest[i + 1 :]]


def best_by_brute_force(
    keys: list[int], max_samples: int | None = None, budget: int = BUDGET
) -> int:
    """Most tokens in a range of the sorted keys that holds the oldest and fits."""
    ordered, oldest = sorted(keys), min(keys, key=age_of)
    ranges = (ordered[a:b] for a in range(len(keys)) for b in range(a + 1, len(keys) + 1))
    return max(
        sum(map(length_of, group))
        for group in ranges
        if oldest in group and fits(group, budget) and len(group) <= (max_samples or len(keys))
    )


@pytest.fixture(params=[4, 1024])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(ordered_module, "_BLOCK", request.param)
    return int(request.param)


def test_a_key_gives_back_length_and_age_and_sorts_by_both() -> None:
    keys = [make_key(length, age) for length in (1, 2, 1 << 39) for age in (0, 1, (1 << 44) - 1)]
    assert keys == sorted(keys)
    assert [(length_of(key), age_of(key)) for key in keys[-2:]] == [
        (1 << 39, 1),
        (1 << 39, (1 << 44) - 1),
    ]


@pytest.mark.parametrize("lengths", list(itertools.combinations_with_replacement([2, 4, 6, 13], 5)))
def test_no_partition_under_the_budget_has_fewer_groups(lengths: tuple[int, ...]) -> None:
    window = filled(list(lengths))
    keys = by_age(window)
    fewest = min(len(p) for p in set_partitions(keys) if all(map(fits, p)))
    groups = window.partition()
    assert len(groups) == fewest
    assert sorted(itertools.chain(*groups)) == sorted(keys)
    assert all(map(fits, groups))


def test_partition_example_from_the_longest_down() -> None:
    assert lengths_in(filled([3, 6, 20, 5, 3, 4]).partition()) == [[20], [6, 5], [4, 3, 3]]


def test_max_samples_limits_every_group() -> None:
    window = filled([1] * 7, TokenBudget(100, max_samples=3))
    assert lengths_in(window.partition()) == [[1, 1, 1], [1, 1, 1], [1]]
    assert len(window.take_best()) == 3


@given(lengths=lengths_lists.filter(bool), max_samples=st.sampled_from([None, 1, 3]))
def test_take_best_is_the_best_range_that_holds_the_oldest(
    lengths: list[int], max_samples: int | None
) -> None:
    window = filled(lengths, TokenBudget(BUDGET, max_samples=max_samples))
    left = by_age(window)
    while left:
        best = best_by_brute_force(left, max_samples)
        taken = window.take_best()
        assert sum(map(length_of, taken)) == best
        assert left[0] in taken
        assert fits(taken)
        left = [key for key in left if key not in taken]
        assert by_age(window) == left


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(40, 90), min_size=1, max_size=60),
    max_samples=st.sampled_from([None, 9]),
)
def test_take_best_is_the_best_range_among_many_samples_of_like_length(
    lengths: list[int], max_samples: int | None
) -> None:
    window = filled(lengths, TokenBudget(1000, max_samples=max_samples))
    best = best_by_brute_force(by_age(window), max_samples, budget=1000)
    taken = window.take_best()
    assert sum(map(length_of, taken)) == best
    assert fits(taken, 1000)


def test_take_best_breaks_ties_towards_the_shorter_samples() -> None:
    window = filled([4, 4, 4, 4])
    assert [age_of(key) for key in window.take_best()] == [0, 1, 2]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(1, 15), min_size=1, max_size=12)),
        st.tuples(st.just("best"), st.integers(1, 3)),
        st.tuples(st.just("remove"), st.integers(1, 9)),
        st.tuples(st.just("back"), st.integers(1, 9)),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(operations=OPERATIONS, block=st.sampled_from([2, 4, 1024]))
def test_a_window_stays_the_window_built_anew_from_its_samples(
    operations: list[tuple[str, int | list[int]]], block: int
) -> None:
    """Whatever happened to it before: nothing cached is stale, no block is out of order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered_module, "_BLOCK", block)
        window, age = Window(TokenBudget(BUDGET)), 0
        model: set[Any] = set()
        out: list[Any] = []
        for name, value in operations:
            if name == "add":
                for length in value if isinstance(value, list) else []:
                    window.add(make_key(length, age))
                    model.add(make_key(length, age))
                    age += 1
                continue
            assert isinstance(value, int)
            if name == "best":
                gone = [key for _ in range(value) if len(window) for key in window.take_best()]
            elif name == "remove":
                gone = sorted(model, key=lambda key: key * 7919 % 101)[:value]
                window.remove(gone)
            else:
                back, out = out[:value], out[value:]
                window.put_back(back)
                model |= set(back)
                gone = []
            model -= set(gone)
            out += gone
            anew = Window(TokenBudget(BUDGET))
            for key in sorted(model, key=age_of):
                anew.add(key)
            assert len(window) == len(model)
            assert by_age(window) == by_age(anew)
            assert window.partition() == anew.partition()
            assert window.drain_plan() == anew.drain_plan()


@given(lengths=lengths_lists, steps=st.integers(1, 4))
def test_what_is_left_of_a_drain_plan_is_the_plan_of_what_is_left(
    lengths: list[int], steps: int
) -> None:
    window = filled(lengths)
    while plan := list(window.drain_plan()):
        ages = [min(map(age_of, group)) for group in plan]
        assert ages == sorted(ages)
        window.remove(key for group in plan[:steps] for key in group)
        anew = Window(TokenBudget(BUDGET))
        for key in by_age(window):
            anew.add(key)
        assert window.drain_plan() == anew.drain_plan() == plan[steps:]


def patches_of(keys: list[int], patches: list[int]) -> dict[int, tuple[int, ...]]:
    return {key: (patch,) for key, patch in zip(keys, patches, strict=True)}


@given(
    samples=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6)), min_size=1, max_size=10),
    steps=st.integers(1, 2),
)
def test_further_limits_hold_and_a_rebuilt_window_goes_on_alike(
    samples: list[tuple[int, int]], steps: int
) -> None:
    budget = TokenBudget(16, extra={"patches": Limit(cost=len, total=5)})
    keys = [make_key(length, age) for age, (length, _) in enumerate(samples)]
    costs = patches_of(keys, [patches for _, patches in samples])
    window = Window(budget, costs)
    for key in keys:
        window.add(key)

    def holds(group: list[int]) -> bool:
        small = sum(costs[key][0] for key in group) <= 5
        return len(group) == 1 or (small and fits(group, 16))

    ordered, oldest = sorted(keys), keys[0]
    ranges = [ordered[a:b] for a in range(len(keys)) for b in range(a + 1, len(keys) + 1)]
    best = max(sum(map(length_of, g)) for g in ranges if oldest in g and holds(g))
    taken = window.take_best()
    assert sum(map(length_of, taken)) == best
    assert holds(taken)
    while plan := list(window.drain_plan()):
        assert all(map(holds, plan))
        anew = Window(budget, costs)
        for key in by_age(window):
            anew.add(key)
        assert anew.drain_plan() == plan
        window.remove(key for group in plan[:steps] for key in group)


def test_a_sample_longer_than_the_budget_goes_out_alone() -> None:
    window = filled([13, 2, 2])
    assert lengths_in([window.take_best()]) == [[13]]
    assert lengths_in([window.take_best()]) == [[2, 2]]


def test_removing_a_sample_twice_is_an_internal_error() -> None:
    window = filled([3, 4])
    keys = by_age(window)
    window.remove(keys[:1])
    with pytest.raises(AssertionError, match="twice"):
        window.remove(keys[:1])


def test_a_tumbling_window_forgets_the_samples_that_left(block: int) -> None:
    window = Window(TokenBudget(BUDGET))
    for start in range(0, 40_000, 400):
        for age in range(start, start + 400):
            window.add(make_key(1 + age % 11, age))
        groups = window.partition()
        window.remove(key for group in groups[: len(groups) - 1] for key in group)
    assert len(window._keys._ages) < 4 * (block + len(window))


def cost_a_sample(size: int) -> float:
    """Seconds of CPU to slide a window over as many samples as it holds, a sample."""
    window = Window(TokenBudget(16384))
    lengths = [200 + (age * 2654435761 >> 7) % 3000 for age in range(2 * size)]
    age = 0
    while age < size:
        window.add(make_key(lengths[age], age))
        age += 1
    window.take_best()
    started = time.process_time()
    while age < 2 * size:
        while len(window) < size and age < 2 * size:
            window.add(make_key(lengths[age], age))
            age += 1
        window.take_best()
    return (time.process_time() - started) / size


def test_the_cost_of_a_sample_hardly_grows_with_the_window() -> None:
    small = min(cost_a_sample(1024) for _ in range(4))
    large = min(cost_a_sample(32768) for _ in range(2))
    assert large < 8 * small  # a linear scan a sample would make it 32 times

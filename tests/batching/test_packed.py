"""Packed rows: which samples form one, and that no limit is passed."""

import itertools
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_nodes.batching.budget import Limit, TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.keys import age_of, length_of, make_key
from odb_nodes.batching.layouts import find_layout
from odb_nodes.batching.packed import Packed
from odb_nodes.batching.window import Window
from tests.batching.test_window import set_partitions


def filled(
    lengths: list[int],
    budget: TokenBudget | int = 20,
    layout: Packed | None = None,
    patches: list[int] | None = None,
) -> Window:
    keys = [make_key(length, age) for age, length in enumerate(lengths)]
    further = None if patches is None else {k: (p,) for k, p in zip(keys, patches, strict=True)}
    limits = TokenBudget(budget) if isinstance(budget, int) else budget
    window = Window(limits, further, layout or Packed())
    for key in keys:
        window.add(key)
    return window


def lengths_in(group: list[int]) -> list[int]:
    return [length_of(key) for key in group]


def rows_of(lengths: list[int], row_tokens: int) -> list[list[int]]:
    """Cut at the first document that does not fit, as the collate does."""
    rows: list[list[int]] = []
    for length in lengths:
        if rows and sum(rows[-1]) + length <= row_tokens:
            rows[-1].append(length)
        else:
            rows.append([length])
    return rows


def test_a_row_by_example() -> None:
    window = filled([60, 20, 30, 10, 4], 100)
    assert lengths_in(window.take_best()) == [60, 20, 10, 4]
    assert lengths_in(window.take_best()) == [30]


def test_age_decides_up_to_85_percent_and_fit_beyond() -> None:
    window = filled([80, 5, 6, 14, 15, 16], 100)
    assert lengths_in(window.take_best()) == [80, 5, 15]


def test_two_rows_by_example() -> None:
    window = filled([60, 30, 70, 9, 50, 1], 200, Packed(rows=2))
    assert lengths_in(window.take_best()) == [60, 30, 9, 1, 70]


def test_a_document_longer_than_a_row_goes_out_alone() -> None:
    window = filled([101, 5, 120, 5], 200, Packed(rows=2))
    assert [lengths_in(window.take_best()) for _ in range(3)] == [[101], [5, 5], [120]]


def test_documents_that_cost_more_a_token_make_shorter_rows() -> None:
    window = filled([50, 30, 10, 10, 10], 100, Packed(cost=Cost(1.0, 0.01)))
    window.aim(100.0)  # 50 tokens cost 75, 30 cost 39, 10 cost 11
    assert lengths_in(window.take_best()) == [50, 10, 10]
    assert lengths_in(window.take_best()) == [30, 10]


def test_a_document_over_the_target_is_a_row_of_its_own() -> None:
    window = filled([90, 5], 100, Packed(cost=Cost(1.0, 0.01)))
    window.aim(100.0)
    assert lengths_in(window.take_best()) == [90]


@settings(deadline=None, max_examples=300)
@given(
    samples=st.lists(st.tuples(st.integers(1, 25), st.integers(0, 6)), max_size=40),
    rows=st.sampled_from([1, 1, 2, 3]),
    most=st.sampled_from([None, 1, 4]),
    target=st.sampled_from([None, 1.0, 25.0, 60.0]),
    limited=st.booleans(),
)
def test_every_sample_once_and_no_limit_passed(
    samples: list[tuple[int, int]], rows: int, most: int | None, target: float | None, limited: bool
) -> None:
    extra = {"patches": Limit(cost=len, total=7)} if limited else {}
    budget = TokenBudget(20 * rows, max_samples=most, extra=extra)
    cost = Cost(1.0, 0.02)
    lengths, patches = [s[0] for s in samples], [s[1] for s in samples]
    window = filled(lengths, budget, Packed(rows=rows, cost=cost), patches)
    window.aim(target)
    partition, taken = window.partition(), []
    assert window.drain_plan() == partition
    while len(window):
        oldest = min(itertools.chain(*window.partition()), key=age_of)
        taken.append(window.take_best())
        assert oldest in taken[-1]
        assert window.partition() == partition[len(taken) :]
    assert taken == partition
    assert sorted(age_of(key) for group in taken for key in group) == list(range(len(samples)))
    for group in taken:
        if len(group) > 1:
            assert len(rows_of(lengths_in(group), 20)) <= rows
            assert max(lengths_in(group)) <= 20
            assert most is None or len(group) <= most
            assert not limited or sum(patches[age_of(key)] for key in group) <= 7
            assert target is None or sum(map(cost.of, lengths_in(group))) <= target + 1e-6


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_a_row_is_closed_only_when_nothing_left_fits(lengths: list[int]) -> None:
    groups = filled(lengths).partition()
    for at, group in enumerate(groups):
        room = 20 - sum(lengths_in(group))
        assert all(length_of(key) > room for later in groups[at + 1 :] for key in later)


@pytest.mark.parametrize(
    "lengths", list(itertools.combinations_with_replacement([3, 7, 11, 20], 6))
)
def test_hardly_more_rows_than_any_packing_needs(lengths: tuple[int, ...]) -> None:
    groups = filled(list(lengths)).partition()
    keys = [key for group in groups for key in group]
    fewest = min(
        len(p) for p in set_partitions(keys) if all(sum(map(length_of, group)) <= 20 for group in p)
    )
    assert ceil(sum(lengths) / 20) <= fewest <= len(groups) <= 1.7 * fewest  # any-fit's bound


@given(
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=60),
    size=st.integers(1, 12),
    target=st.sampled_from([None, 25.0]),
)
def test_a_sample_waits_for_fewer_groups_than_the_window_holds(
    lengths: list[int], size: int, target: float | None
) -> None:
    window, arrived, left = filled([]), {}, [make_key(n, age) for age, n in enumerate(lengths)]
    window.aim(target)
    for step in itertools.count():
        while left and len(window) < size:
            arrived[left[0]] = step
            window.add(left.pop(0))
        if not len(window):
            break
        for key in window.take_best():
            assert step - arrived[key] < size


@given(
    lengths=st.lists(st.integers(1, 25), max_size=40),
    steps=st.integers(1, 4),
    target=st.sampled_from([None, 25.0]),
)
def test_what_is_left_of_a_drain_plan_is_the_plan_of_what_is_left(
    lengths: list[int], steps: int, target: float | None
) -> None:
    window = filled(lengths, layout=Packed(cost=Cost(1.0, 0.01)))
    window.aim(target)
    while plan := list(window.drain_plan()):
        window.remove(key for group in plan[:steps] for key in group)
        assert window.drain_plan() == window.partition() == plan[steps:]


def test_a_new_target_makes_a_new_plan() -> None:
    window = filled([9, 9, 9, 9], 20, Packed(cost=Cost()))
    assert len(window.drain_plan()) == 2
    window.aim(9.0)
    assert len(window.drain_plan()) == 4


def test_layouts_are_found_by_name() -> None:
    cost = Cost(1.0, 1e-5)
    assert find_layout("packed", cost=cost) == Packed(cost=cost)
    assert find_layout(Packed(rows=2)) == Packed(rows=2)
    assert find_layout("padded").describe() != find_layout("packed").describe()
    assert find_layout("packed", cost=cost).describe() != find_layout("packed").describe()
    with pytest.raises(ValueError, match="got 'ragged'"):
        find_layout("ragged")
    with pytest.raises(ValueError, match="go with a layout's name"):
        find_layout(Packed(), cost=cost)
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        Packed(rows=0)


def test_what_groups_take_and_cost() -> None:
    budget, cost = TokenBudget(100), Cost(1.0, 0.01)
    padded, packed = find_layout("padded", cost=cost), find_layout("packed", cost=cost)
    assert (padded.size([30, 10], budget), packed.size([30, 10], budget)) == (60, 40)
    assert (padded.group_cost([30, 10]), packed.group_cost([30, 10])) == (78, 50)
    assert (padded.group_cost([]), packed.group_cost([])) == (0, 0)
    assert (padded.size([], budget), packed.size([], budget)) == (0, 0)
    assert Packed(rows=4).longest(budget) == 25

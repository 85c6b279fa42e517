"""The pure core of the protocol: reports, facts, targets, settling, splitting, order, closure."""

from collections import Counter
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.keys import num_tokens
from odb_nodes.batching.window import Window, age_of, length_of, make_key
from odb_nodes.protocol.policies import POLICIES
from odb_nodes.protocol.proposal import Proposal, split
from odb_nodes.protocol.reports import Facts, Report
from odb_nodes.protocol.sliding import SlidingPolicy
from odb_nodes.protocol.steps import plan_steps, step_order, steps_to_quota
from odb_nodes.protocol.tumbling import TumblingPolicy

reports = st.builds(
    Report,
    groups=st.integers(0, 1 << 40),
    samples=st.integers(0, 1 << 40),
    capacity=st.none() | st.integers(1, 1 << 40),
    exhausted=st.booleans(),
    failed=st.booleans(),
    stopping=st.booleans(),
)
groups_of_ints = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), max_size=6)


def merged(reports: list[Report], agreements: list[int] | None = None) -> Facts:
    rows = [
        report.encode(rank, (agreements or [7] * len(reports))[rank])
        for rank, report in enumerate(reports)
    ]
    return Facts.decode([max(column) for column in zip(*rows, strict=True)])


def keys_of(groups: list[list[int]]) -> list[list[int]]:
    """Groups of lengths as groups of keys, ages counted on."""
    ages = iter(range(1000))
    return [[make_key(length, next(ages)) for length in group] for group in groups]


@given(st.lists(reports, min_size=1, max_size=5))
def test_facts_say_of_all_reports_what_they_claim(reports: list[Report]) -> None:
    facts = merged(reports)
    samples = [report.samples for report in reports]
    assert facts.failed_rank == max((i for i, r in enumerate(reports) if r.failed), default=None)
    assert facts.stopping_rank == max(
        (i for i, r in enumerate(reports) if r.stopping), default=None
    )
    assert facts.any_open == any(not report.exhausted for report in reports)
    assert facts.max_groups == max(report.groups for report in reports)
    capacities = [r.capacity for r in reports if r.capacity is not None]
    assert facts.min_capacity == min(capacities, default=1 << 62)
    assert facts.min_samples == min(filter(None, samples), default=1 << 62)
    assert facts.any_empty == (0 in samples)
    assert facts.agreed


@given(st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=4))
def test_ranks_agree_only_if_all_say_the_same(agreements: list[int]) -> None:
    facts = merged([Report()] * len(agreements), agreements)
    assert facts.agreed == (len(set(agreements)) == 1)


@given(reports, st.integers(0, 4095), st.integers(0, (1 << 62) - 1))
def test_a_report_is_nine_integers_of_64_bits(report: Report, rank: int, agreement: int) -> None:
    row = report.encode(rank, agreement)
    assert len(row) == 9
    assert all(-(1 << 63) <= value < 1 << 63 for value in row)


@given(groups_of_ints, st.integers(1, 40))
def test_split_keeps_every_sample_and_reaches_the_count_if_it_can(
    lengths: list[list[int]], steps: int
) -> None:
    groups = keys_of(lengths)
    out = split(groups, steps)
    assert Counter(chain(*out)) == Counter(chain(*groups))
    assert all(out)
    assert len(out) == max(len(groups), min(steps, sum(map(len, groups))))
    if len(groups) >= steps:
        assert sorted(out) == sorted(groups)


def test_split_halves_the_largest_group_first() -> None:
    out = split(keys_of([[5, 5, 5, 5], [9]]), 3)
    assert sorted(map(len, out)) == [1, 2, 2]


@pytest.mark.parametrize("taken", [False, True])
@given(lengths=groups_of_ints, steps=st.integers(1, 12))
def test_settle_gives_exactly_the_steps_and_keeps_the_rest_in_the_window(
    taken: bool, lengths: list[list[int]], steps: int
) -> None:
    groups = keys_of(lengths)
    keys = list(chain(*groups))
    window = Window(TokenBudget(100))
    for key in keys:
        window.add(key)
    if taken:
        window.remove(keys)
    out = Proposal(groups=groups, taken=taken, report=Report()).settle(window, steps)
    assert len(out) == steps
    weights = [num_tokens(group) for group in out]
    assert weights == sorted(weights, reverse=True)
    left = list(chain(*window.partition()))
    assert Counter(chain(left, *out)) == Counter(keys)
    assert sum(map(bool, out)) == min(steps, len(keys))
    if len(groups) >= steps:
        assert sorted(out) == sorted(groups[:steps])
        if left:
            assert min(left, key=age_of) in window.take_best()


FACTS: dict[str, Any] = {
    "failed_rank": None,
    "stopping_rank": None,
    "any_open": True,
    "max_groups": 5,
    "min_capacity": 8,
    "min_samples": 3,
    "any_empty": False,
    "agreed": True,
}


@pytest.mark.parametrize(
    ("policy", "change", "steps"),
    [
        ("tumbling", {}, 3),
        ("tumbling", {"min_samples": 9}, 5),
        ("tumbling", {"min_samples": 9, "min_capacity": 2}, 2),
        ("sliding", {}, 8),
        ("sliding", {"any_open": False}, 5),
        ("sliding", {"any_open": False, "max_groups": 1}, 1),
    ],
)
def test_targets_by_example(policy: str, change: dict[str, Any], steps: int) -> None:
    facts = Facts(**{**FACTS, **change})
    assert POLICIES[policy].target(facts) == steps
    assert plan_steps(facts, POLICIES[policy], join=True) == steps
    assert plan_steps(facts, POLICIES[policy], join=False) == min(steps, facts.min_samples)


@pytest.mark.parametrize(("policy", "join"), list(product(POLICIES, [True, False])))
def test_a_pass_ends_when_no_rank_or_in_a_closure_some_rank_has_nothing(
    policy: str, join: bool
) -> None:
    nobody = Facts(**{**FACTS, "max_groups": 0, "any_empty": True, "any_open": False})
    somebody = Facts(**{**FACTS, "any_empty": True})
    assert plan_steps(nobody, POLICIES[policy], join=join) == 0
    assert (plan_steps(somebody, POLICIES[policy], join=join) == 0) == (not join)


def test_the_tumbling_target_counts_active_ranks_only() -> None:
    facts = merged([Report(groups=4, samples=9), Report()])
    assert TumblingPolicy().target(facts) == 4


class Stream:
    """A view of given lengths, and the window it tops up."""

    def __init__(self, lengths: list[int], size: int, budget: int = 12) -> None:
        self.left = [make_key(length, age) for age, length in enumerate(lengths)]
        self.size = size
        self.window = Window(TokenBudget(budget))

    def refill(self, window: Window) -> bool:
        while len(window) < self.size and self.left:
            window.add(self.left.pop(0))
        return len(window) == self.size


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 15), max_size=30),
    size=st.integers(1, 8),
    capacity=st.none() | st.integers(1, 5),
)
def test_an_open_rank_under_sliding_offers_capacity_groups_each_around_the_oldest(
    lengths: list[int], size: int, capacity: int | None
) -> None:
    stream = Stream(lengths, size)
    offer = SlidingPolicy().propose(stream.window, stream.refill, capacity)
    keys = list(chain(*offer.groups))
    assert offer.report.samples == len(lengths) - len(stream.left)
    assert offer.report.groups == len(offer.groups)
    if offer.report.exhausted:
        assert not stream.left
        assert not offer.taken
        assert len(keys) == len(lengths) == len(stream.window)
        return
    assert len(offer.groups) == offer.report.capacity == (capacity or 8)
    gone: set[int] = set()
    for group in offer.groups:
        assert min((key for key in set(keys) - gone), key=age_of) in group
        gone |= set(group)


def test_a_round_takes_one_step_at_first_and_then_half_a_window() -> None:
    capacity = SlidingPolicy().capacity
    assert capacity(1024, 0, 0) == capacity(1024, 5, 0) == 1
    assert capacity(1024, 10, 100) == 8
    assert capacity(1024, 10, 1500) == 4
    assert capacity(1024, 10, 90_000) == 1
    assert capacity(16, 10, 500) == 4
    assert TumblingPolicy().capacity(1024, 10, 100) is None


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.just(0.0) | st.floats(1e-4, 1e12))
def test_a_round_has_one_to_eight_steps(window: int, steps: int, samples: float) -> None:
    assert 1 <= SlidingPolicy().capacity(window, steps, samples) <= 8


@given(lengths=st.lists(st.integers(1, 15), max_size=30), size=st.integers(1, 30))
def test_the_tumbling_offer_is_the_whole_window_heaviest_group_first(
    lengths: list[int], size: int
) -> None:
    stream = Stream(lengths, size)
    offer = TumblingPolicy().propose(stream.window, stream.refill, None)
    weights = [num_tokens(group) for group in offer.groups]
    assert weights == sorted(weights, reverse=True)
    assert sum(map(len, offer.groups)) == len(stream.window) == min(size, len(lengths))
    assert offer.report.exhausted == (len(lengths) < size)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 60))
def test_a_quota_keeps_the_steps_up_to_the_first_that_reaches_it(
    counts: list[int], missing: int
) -> None:
    kept = steps_to_quota(counts, missing)
    assert sum(counts[: kept - 1]) < missing
    assert kept == len(counts) or sum(counts[:kept]) >= missing


@given(st.integers(0, 200), st.lists(st.integers(0, 1 << 40), max_size=3))
def test_step_order_is_a_permutation_that_equal_seeds_share(steps: int, seed: list[int]) -> None:
    order = step_order(steps, *seed)
    assert sorted(order) == list(range(steps))
    assert order == step_order(steps, *seed)


def test_step_order_puts_every_slot_everywhere_about_equally_often() -> None:
    places = Counter(
        (slot, at) for seed in range(2000) for at, slot in enumerate(step_order(4, 0, seed))
    )
    assert len(places) == 16
    assert all(abs(count - 500) < 110 for count in places.values())  # 5 sigma of 500 +- 19


def test_num_tokens_sums_lengths() -> None:
    group = [make_key(3, 5), make_key(4, 6)]
    assert num_tokens(group) == 7 == sum(map(length_of, group))

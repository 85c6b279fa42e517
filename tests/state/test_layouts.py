"""Packed groups from end to end: coverage, totals, resuming, and changes of layout in mid-epoch."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch

from odb_nodes import Packed, Rounding, TokenBudget, odb_loader, pack_states, reshard_states
from odb_nodes.batching.cost import Cost
from odb_nodes.state.description import describe_state
from tests.helpers import Tokens, positions, random_lengths, run_loaders, same_batches

COUNT = 120
LENGTHS = random_lengths(COUNT, seed=5)
COST = (1.0, 0.01)


def build(**changes: Any) -> Any:
    settings: dict[str, Any] = {"token_budget": 200, "window": 16, "layout": "packed"}
    settings |= {"cost": COST, **changes}
    return odb_loader(Tokens(LENGTHS), **settings)


@pytest.mark.parametrize("policy", ["sliding", "tumbling"])
@pytest.mark.parametrize("changes", [{}, {"rows": 3}, {"cost": None}], ids=str)
def test_every_sample_comes_once_in_rows_that_hold_it(policy: str, changes: dict[str, Any]) -> None:
    results = run_loaders(3, partial(build, policy=policy, **changes), None, None)
    batches = [batch for rank, _ in results for batch in rank]
    assert sorted(p for batch in batches for p in positions([batch])) == list(range(COUNT))
    assert len({len(rank) for rank, _ in results}) == 1
    rows = changes.get("rows", 1)
    for batch in batches:
        shape, info = batch.tensors["input_ids"].shape, batch.info
        assert shape[0] <= rows
        assert shape[1] <= 200 // rows or info.num_samples == 1
        assert info.padded_tokens == info.num_tokens
        assert info.fill == info.num_tokens / 200
    for step in zip(*(rank for rank, _ in results), strict=True):
        infos = [batch.info for batch in step]
        costs = [info.cost for info in infos]
        assert {info.total_cost for info in infos} == {sum(costs)}
        assert infos[0].slowest_over_mean == max(costs) * 3 / sum(costs)


@pytest.mark.parametrize("policy", ["sliding", "tumbling"])
def test_a_resume_after_any_step_goes_on_bit_by_bit(policy: str) -> None:
    whole = run_loaders(2, partial(build, policy=policy), None, None)
    for steps in range(1, len(whole[0][0]), 3):
        heads = run_loaders(2, partial(build, policy=policy), None, steps)
        states = [state for _, state in heads]
        rests = run_loaders(2, partial(build, policy=policy), states, None)
        for (batches, _), (head, _), (rest, _) in zip(whole, heads, rests, strict=True):
            assert same_batches(batches, head + rest)


LAYOUTS: list[dict[str, Any]] = [
    {"layout": "padded", "cost": None},
    {"layout": "padded"},
    {"cost": None},
    {"cost": (1.0, 0.2)},
    {"rows": 2},
    {"policy": "tumbling", "shape": "fixed", "overlong": "drop"},
]


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(LAYOUTS, 2)), ids=str)
def test_another_layout_in_mid_epoch_loses_and_repeats_nothing(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    heads = run_loaders(2, partial(build, **before), None, 3)
    rests = run_loaders(2, partial(build, **after), [state for _, state in heads], None)
    seen = [p for batches, _ in heads + rests for p in positions(batches)]
    assert sorted(seen) == list(range(COUNT))


def test_another_world_size_keeps_the_cost_learned() -> None:
    heads = run_loaders(2, build, None, 4)
    states = reshard_states([state for _, state in heads], 3)
    rests = run_loaders(3, build, states, None)
    seen = [p for batches, _ in heads + rests for p in positions(batches)]
    assert sorted(seen) == list(range(COUNT))
    assert states[1]["counters"]["total_cost"] == heads[0][1]["counters"]["total_cost"] > 0


def test_a_state_of_packed_groups_is_as_small() -> None:
    sizes = {
        layout: len(pack_states([run_loaders(1, partial(build, layout=layout), None, 5)[0][1]]))
        for layout in ("padded", "packed")
    }
    assert sizes["packed"] < 1.1 * sizes["padded"]


def test_a_state_saved_before_costs_were_counted_is_read() -> None:
    (head, state), *_ = run_loaders(1, partial(build, layout="padded", cost=None), None, 5)
    for name in ("total_tokens", "total_cost"):
        del state["counters"][name]
    assert describe_state(state)["epoch"] == 0
    (rest, _), *_ = run_loaders(1, build, [state], None)
    assert sorted(positions(head + rest)) == list(range(COUNT))


def test_fixed_shapes_never_change() -> None:
    changes = {"rows": 2, "shape": "fixed", "overlong": "drop", "token_budget": 240}
    results = run_loaders(3, partial(build, **changes), None, None)
    shapes = {batch.tensors["input_ids"].shape for rank, _ in results for batch in rank}
    assert shapes == {torch.Size([2, 120])}


def test_documents_are_rounded_as_the_budget_says() -> None:
    budget = TokenBudget(240, rounding=Rounding(multiple=16))
    for batch in build(token_budget=budget):
        lengths = batch.tensors["cu_seqlens"].diff()
        assert not (lengths % 16).any()
        assert batch.tensors["input_ids"].shape[1] <= 240


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layout": "ragged"}, "one of .'padded', 'packed'., got 'ragged'"),
        ({"layout": "padded", "rows": 2}, "rows are of packed groups"),
        ({"layout": "padded", "shape": "fixed", "overlong": "drop"}, "shape is of packed steps"),
        ({"shape": "fixed"}, "no room for a sample longer than a row"),
        ({"shape": "dynamic", "collate": list}, "shape is of the default collate"),
        ({"layout": Packed(cost=Cost()), "rows": 2}, "go with a layout's name"),
        ({"cost": (0.0, 1.0)}, "cost per token must be positive"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build(**changes)

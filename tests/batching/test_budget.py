"""Limits of a group, and what they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_nodes.batching.budget import Limit, Rounding, TokenBudget


@given(st.integers(1, 10_000), st.integers(1, 20_000), st.none() | st.integers(1, 50))
def test_most_is_the_largest_count_that_fits(
    max_tokens: int, length: int, max_samples: int | None
) -> None:
    most = TokenBudget(max_tokens, max_samples=max_samples).most(length)
    limit = max_samples or 1 << 60
    assert most >= 1
    assert most == 1 or (most * length <= max_tokens and most <= limit)
    assert (most + 1) * length > max_tokens or most + 1 > limit


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_a_budget_below_one_token_is_refused(max_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got {max_tokens}"):
        TokenBudget(max_tokens)


def test_other_limits_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="max_samples must be at least 1 or None, got 0"):
        TokenBudget(1, max_samples=0)
    with pytest.raises(ValueError, match="total must be at least 1, got 0"):
        Limit(cost=len, total=0)


def test_costs_and_totals_come_in_the_order_of_the_limits() -> None:
    budget = TokenBudget(
        100,
        extra={
            "patches": Limit(cost=lambda data: data["p"], total=7),
            "frames": Limit(cost=lambda data: data["f"], total=9),
        },
    )
    assert budget.totals == (7, 9)
    assert budget.costs({"p": 1, "f": 2}) == (1, 2)


def test_descriptions_tell_budgets_apart() -> None:
    limit = Limit(cost=len, total=7)
    budgets = [
        TokenBudget(100),
        TokenBudget(101),
        TokenBudget(100, max_samples=3),
        TokenBudget(100, extra={"patches": limit}),
        TokenBudget(100, extra={"frames": limit}),
    ]
    assert len({budget.describe() for budget in budgets}) == len(budgets)
    assert TokenBudget(100).describe() == TokenBudget(100).describe()


@given(
    length=st.integers(1, 200_000),
    multiple=st.sampled_from([1, 2, 3, 8, 128]),
    per_doubling=st.sampled_from([None, 1, 4, 8]),
)
def test_rounding_up_gives_a_multiple_and_passes_neither_bound(
    length: int, multiple: int, per_doubling: int | None
) -> None:
    rounding = Rounding(multiple=multiple, per_doubling=per_doubling)
    padded = rounding.up(length)
    assert padded >= length
    assert padded % multiple == 0
    assert padded < length + multiple + (0 if per_doubling is None else length / per_doubling)
    assert Rounding(multiple=multiple, per_doubling=per_doubling, longest=length).up(length) == (
        length
    )


@pytest.mark.parametrize("per_doubling", [1, 4, 8])
def test_few_padded_lengths_occur(per_doubling: int) -> None:
    rounding = Rounding(multiple=8, per_doubling=per_doubling)
    padded = {rounding.up(length) for length in range(1025, 8193)}
    assert len(padded) == 3 * per_doubling
    assert max(padded) == 8192


def test_a_budget_counts_what_rows_are_padded_to() -> None:
    budget = TokenBudget(4096, rounding=Rounding(multiple=128))
    assert (budget.padded(1), budget.padded(129)) == (128, 256)
    assert TokenBudget(4096).padded(129) == 129
    assert budget.describe() != TokenBudget(4096).describe()
    with pytest.raises(ValueError, match="per_doubling must be at least 1, got 0"):
        Rounding(per_doubling=0)

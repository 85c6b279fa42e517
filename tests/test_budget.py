"""Limits of a group, and what they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_nodes.budget import Limit, TokenBudget


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

"""What a document costs, and the longest that a sum still has room for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_nodes.batching.cost import Cost


def test_cost_by_example() -> None:
    cost = Cost(1.0, 1e-4)
    assert 2 * cost.of(1000) == pytest.approx(2200)
    assert cost.of(2000) == pytest.approx(2400)
    assert Cost(2.0, 2e-4).of(1000) == pytest.approx(cost.of(1000))
    assert Cost(2.0, 2e-4).describe() == cost.describe() != Cost().describe()


@given(
    per_pair=st.sampled_from([0.0, 1e-9, 1.75e-5, 1e-3, 2.0]), room=st.floats(0.0, 1e9, width=32)
)
def test_the_longest_that_fits_is_the_longest(per_pair: float, room: float) -> None:
    cost = Cost(1.0, per_pair)
    longest = cost.longest(room)
    assert longest == 0 or cost.of(longest) <= room
    assert cost.of(longest + 1) > room


@pytest.mark.parametrize("args", [(0.0, 1.0), (-1.0, 0.0), (float("nan"), 0.0), (1.0, -1e-9)])
def test_costs_that_are_none_are_refused(args: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="cost per"):
        Cost(*args)

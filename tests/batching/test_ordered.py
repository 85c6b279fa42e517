"""Keys by length and by age: whatever was done before, both orders are those of the keys left."""

from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_nodes.batching import ordered as ordered_module
from odb_nodes.batching.keys import AGE_BITS, age_of, length_of, make_key
from odb_nodes.batching.ordered import OrderedKeys

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(1, 9), min_size=1, max_size=30)),
        st.tuples(st.just("oldest"), st.integers(1, 12)),
        st.tuples(st.just("largest"), st.integers(1, 10)),
        st.tuples(st.just("remove"), st.integers(1, 12)),
        st.tuples(st.just("back"), st.integers(1, 12)),
        st.tuples(st.just("run"), st.integers(1, 6)),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=200)
@given(steps=STEPS, block=st.sampled_from([2, 8]), skip=st.sampled_from([0, 1, 8]))
def test_both_orders_stay_those_of_the_keys_left(steps: list[Any], block: int, skip: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered_module, "_BLOCK", block)
        patch.setattr(ordered_module, "_SKIP", skip)
        keys, age = OrderedKeys(), 0
        left: set[Any] = set()
        out: list[Any] = []
        for name, value in steps:
            if name == "add":
                for length in value:
                    keys.add(make_key(length, age))
                    left.add(make_key(length, age))
                    age += 1
                continue
            if name == "back":
                gone: list[int] = []
                back, out = out[:value], out[value:]
                keys.put_back(back)
                left |= set(back)
            elif name == "oldest":
                gone = list(keys.oldest_first())[:value]
                assert gone == sorted(left, key=age_of)[:value]
                keys.pop_oldest(len(gone))
            elif name == "largest":
                below = value << AGE_BITS
                key = keys.pop_largest(below)
                assert key == max((k for k in left if k < below), default=None)
                gone = [] if key is None else [key]
            elif name == "remove":
                gone = sorted(left, key=lambda k: k * 7919 % 101)[:value]
                keys.remove(gone)
            else:
                gone = take_run(keys, sorted(left), value)
            left -= set(gone)
            out += gone
            assert len(keys) == len(left)
            assert keys.ascending() == sorted(left)
            assert list(keys.oldest_first()) == sorted(left, key=age_of)


def take_run(keys: OrderedKeys, ascending: list[int], count: int) -> list[int]:
    if not ascending:
        return []
    key = min(ascending, key=age_of)
    at = bisect_left(ascending, key)
    before, after = keys.around(key, count - 1, count)
    assert before == ascending[max(0, at - count + 1) : at]
    assert after == ascending[at : at + count]
    keys.remove_run(before + after)
    return before + after


def test_keys_that_are_not_allowed_are_passed_over_so_many_times() -> None:
    keys = OrderedKeys(make_key(length, age) for age, length in enumerate([1, 2, 3, 4, 5]))
    below = 6 << AGE_BITS
    assert keys.pop_largest(below, lambda key: length_of(key) == 3, tries=2) is None
    assert length_of(keys.pop_largest(below, lambda key: length_of(key) == 3, tries=3) or 0) == 3
    assert keys.pop_largest(below, lambda key: False, tries=9) is None
    assert len(keys) == 4


def test_removed_keys_do_not_pile_up() -> None:
    keys = OrderedKeys()
    for age in range(40_000):
        keys.add(make_key(1 + age % 1000 + age // 10, age))  # lengths drift away from old blocks
        if age >= 400:
            keys.pop_oldest(1) if age % 3 else keys.pop_largest(1 << 62)
    held = sum(map(len, keys._blocks)) + len(keys._ages)
    assert held < 2 * (2 * len(keys) + 2 * ordered_module._BLOCK)

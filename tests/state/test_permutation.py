"""The order of an epoch: a bijection at every size, well mixed, equal everywhere."""

import numpy as np
import pytest

from odb_nodes.state.permutation import Permutation, key64, mix64

GOLDEN = [7, 5, 1, 3, 9, 4, 6, 2, 0, 8]


def test_it_is_a_bijection_for_every_size_up_to_one_thousand() -> None:
    for size in range(1001):
        image = Permutation(size, key=size)(np.arange(size))
        assert np.array_equal(np.sort(image), np.arange(size)), size


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 99_991, 250_000])
def test_it_is_a_bijection_at_some_large_sizes(size: int) -> None:
    image = Permutation(size, key=3)(np.arange(size))
    assert np.array_equal(np.sort(image), np.arange(size))


@pytest.mark.parametrize("size", [10**9, (1 << 40) + 7])
def test_huge_domains_stay_inside_and_do_not_collide(size: int) -> None:
    order = Permutation(size, key=11)
    for start in (0, size // 2, size - 50_000):
        image = order(np.arange(start, start + 50_000))
        assert image.min() >= 0
        assert image.max() < size
        assert len(np.unique(image)) == 50_000


def test_part_of_the_order_is_the_same_part_of_the_whole() -> None:
    order = Permutation(1000, key=5)
    assert np.array_equal(order(np.arange(1000))[200:300], order(np.arange(200, 300)))
    grid = np.arange(6).reshape(2, 3)
    assert order(grid).shape == (2, 3)


def test_the_order_is_this_one_on_every_machine() -> None:
    assert Permutation(10, key64(0, 0))(np.arange(10)).tolist() == GOLDEN
    assert key64(1, 2) != key64(2, 1)


def chi_square(counts: np.ndarray, expected: float) -> float:
    """Standard deviations that the chi-square statistic of counts is off its mean."""
    degrees = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float((statistic - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_small_orders_put_each_element_everywhere_equally_often(size: int) -> None:
    keys = 1500
    images = np.stack([Permutation(size, key64(9, key))(np.arange(size)) for key in range(keys)])
    counts = np.stack([(images == element).sum(axis=0) for element in range(size)])
    assert abs(chi_square(counts, keys / size)) < 6


def test_all_orders_of_four_occur_about_equally_often() -> None:
    keys = 2400
    orders = [tuple(Permutation(4, key64(1, key))(np.arange(4)).tolist()) for key in range(keys)]
    _, counts = np.unique(np.array(orders), axis=0, return_counts=True)
    assert len(counts) == 24
    assert abs(chi_square(counts, keys / 24)) < 6


@pytest.mark.parametrize("size", [10_007, 65_536, 200_000])
def test_large_orders_spread_neighbours_over_the_whole_range(size: int) -> None:
    image = Permutation(size, key=1)(np.arange(size))
    cells = 16
    here = np.arange(size) * cells // size
    there = image * cells // size
    pairs = np.histogram2d(here, there, bins=cells)[0]
    assert abs(chi_square(pairs, size / cells**2)) < 6
    steps = np.diff(image) % size  # neighbours land anywhere, not at a fixed distance
    counts = np.bincount(steps * 64 // size, minlength=64)
    assert abs(chi_square(counts, (size - 1) / 64)) < 6
    fixed = int((image == np.arange(size)).sum())
    assert fixed < 10


def test_other_keys_give_other_orders() -> None:
    images = {tuple(Permutation(50, key)(np.arange(50)).tolist()) for key in range(100)}
    assert len(images) == 100


def test_mix64_has_no_collision_and_flips_about_half_the_bits() -> None:
    values = np.arange(1 << 16, dtype=np.uint64)
    assert len(np.unique(mix64(values))) == values.size
    flips = mix64(values) ^ mix64(values ^ np.uint64(1 << 9))
    ones = np.unpackbits(flips.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.01

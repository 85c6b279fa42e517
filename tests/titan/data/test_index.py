"""Samples by index, where rows give several, one or none."""

import numpy as np
import pytest

from titan_integration.data.sources.index import SampleIndex, counts_of


class Letters:
    """A table of letters."""

    def __init__(self, letters: str) -> None:
        self._letters = letters

    @property
    def files(self) -> list[str]:
        return ["letters"]

    def __len__(self) -> int:
        return len(self._letters)

    def __getitem__(self, index: int, /) -> str:
        return self._letters[index]

    def where(self, index: int, /) -> str:
        return f"letters:{index + 1}"

    def fingerprint(self) -> str:
        return self._letters


def test_a_row_has_as_many_places_as_samples_and_at_least_one() -> None:
    index = SampleIndex(Letters("abcd"), np.array([2, 0, 1, 3]))
    found = [index[i] for i in range(len(index))]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("d", 0), ("d", 1), ("d", 2)]
    assert index.where(4) == "letters:4"
    for outside in (-1, 7):
        with pytest.raises(IndexError, match="sample must be in"):
            index[outside]


@pytest.mark.parametrize("counts", [None, np.array([1, 1, 0])])
def test_rows_of_one_sample_cost_no_memory(counts: np.ndarray | None) -> None:
    index = SampleIndex(Letters("abc"), counts)
    assert index._ends is None
    assert [index[i] for i in range(3)] == [("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_counts_of_all_ranks_come_back_in_file_order(world: int) -> None:
    counts = np.arange(7)
    shares = [counts[rank::world] for rank in range(world)]
    assert counts_of(shares, 7).tolist() == counts.tolist()

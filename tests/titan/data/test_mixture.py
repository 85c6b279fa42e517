"""Mixtures and held-out rows: every epoch exactly what the weights say, no row on both sides."""

import json
import math
import pickle
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titan_integration.data.inputs.joined import First, Joined, Split
from titan_integration.data.inputs.mixture import Mixture, Source
from titan_integration.data.inputs.open import Inputs, split_weight
from titan_integration.data.sources.cache import Cache
from titan_integration.errors import UserError


@dataclass
class Numbers:
    """A table whose rows are ``start, start + 1, ...``."""

    start: int
    size: int
    files: tuple[str, ...] = ("numbers",)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return range(self.start, self.start + self.size)[index]

    def where(self, index: int) -> str:
        return f"numbers row {index + 1}"

    def fingerprint(self) -> str:
        return f"{self.start} {self.size}"


WEIGHTS = st.floats(0.01, 4, allow_nan=False)


@given(st.lists(st.tuples(st.integers(0, 60), WEIGHTS), min_size=1, max_size=4), st.integers(0, 9))
def test_an_epoch_reads_every_row_as_often_as_its_weight_says(
    parts: list[tuple[int, float]], seed: int
) -> None:
    sources = [
        Source(name=str(i), table=Numbers(1000 * i, size), weight=weight)
        for i, (size, weight) in enumerate(parts)
    ]
    mixture = Mixture(sources=sources, seed=seed)
    read = Counter(mixture[i] for i in range(len(mixture)))
    for number, (size, weight) in enumerate(parts):
        counts = [read[row] for row in range(1000 * number, 1000 * number + size)]
        assert sum(counts) == (max(round(weight * size), 1) if size else 0)
        assert max(counts, default=0) - min(counts, default=0) <= 1
    assert sum(read.values()) == len(mixture)


def test_every_row_of_a_mixture_knows_its_source_repetition_and_place() -> None:
    mixture = Mixture(
        sources=[
            Source(name="a", table=Numbers(0, 3), weight=2),
            Source(name="empty", table=Numbers(50, 0)),
            Source(name="b", table=Numbers(100, 4), weight=1.5),
        ]
    )
    places = [mixture.locate(i) for i in range(len(mixture))]
    assert places[:6] == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 1, 2)]
    assert places[6:10] == [(2, 0, row) for row in range(4)]
    assert [place[:2] for place in places[10:]] == [(2, 1)] * 2
    assert len({place.row for place in places[10:]}) == 2
    assert [mixture.source_of(i) for i in range(12)] == [0] * 6 + [2] * 6
    assert mixture.where(4) == "numbers row 2"
    with pytest.raises(IndexError):
        mixture[12]


def test_the_part_of_a_weight_is_drawn_by_the_seed_and_stays() -> None:
    def rows(seed: int) -> list[int]:
        part = Source(name="a", table=Numbers(0, 1000), weight=0.5)
        mixture = Mixture(sources=[part], seed=seed)
        return [mixture[i] for i in range(len(mixture))]

    assert rows(0) == rows(0)
    assert set(rows(0)) != set(rows(1))
    assert len(set(rows(0))) == 500


@given(st.integers(0, 400), st.floats(0.001, 0.5))
def test_every_row_is_either_trained_on_or_held_out(size: int, fraction: float) -> None:
    table = Numbers(0, size)
    held = Split(table=table, fraction=fraction, held_out=True)
    rest = Split(table=table, fraction=fraction, held_out=False)
    held_rows = [held[i] for i in range(len(held))]
    rest_rows = [rest[i] for i in range(len(rest))]
    assert sorted(held_rows + rest_rows) == list(range(size))
    assert held_rows == sorted(held_rows)
    assert rest_rows == sorted(rest_rows)
    assert math.floor(size * fraction - 1e-3) <= len(held_rows) <= math.ceil(size * fraction + 1e-3)


@given(st.integers(1, 300), st.integers(0, 100), st.floats(0.01, 0.5))
def test_rows_appended_later_change_no_side(size: int, more: int, fraction: float) -> None:
    def held(rows: int) -> set[int]:
        split = Split(table=Numbers(0, rows), fraction=fraction, held_out=True)
        return {split[i] for i in range(len(split))}

    assert held(size) == {row for row in held(size + more) if row < size}


def test_held_out_rows_are_no_regular_pattern() -> None:
    split = Split(table=Numbers(0, 10_000), fraction=0.1, held_out=True)
    remainders = Counter(split[i] % 10 for i in range(len(split)))
    assert len(remainders) == 10
    assert max(remainders.values()) < 150


def test_tables_joined_and_limited_keep_their_places() -> None:
    joined = Joined(tables=[Numbers(0, 2), Numbers(10, 0), Numbers(20, 3)])
    first = First(table=joined, limit=4)
    assert [first[i] for i in range(len(first))] == [0, 1, 20, 21]
    assert first.where(3) == "numbers row 2"
    assert first.fingerprint() != joined.fingerprint()
    with pytest.raises(IndexError, match="row must be in"):
        first[4]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Files of 20 and 30 rows."""
    for name, size in (("a.jsonl", 20), ("b.jsonl", 30)):
        lines = (json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(size))
        (tmp_path / name).write_text("".join(lines))
    return [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]


def test_a_row_read_twice_is_never_both_trained_on_and_held_out(
    tmp_path: Path, paths: list[str]
) -> None:
    inputs = Inputs(
        mix=[f"{paths[0]}:2", f"{paths[1]}:0.5"],
        validation_fraction=0.1,
        cache=Cache(folder=tmp_path / "cache"),
    )
    inputs.check()
    trained, held = inputs.open(), inputs.open(held_out=True)
    texts = Counter(trained[i]["text"] for i in range(len(trained)))
    out = [held[i]["text"] for i in range(len(held))]
    assert len(out) == len(set(out)) == 5
    assert not set(out) & set(texts)
    assert Counter(texts.values()) == {2: 18, 1: 14}
    assert trained.names == held.names == ("a.jsonl", "b.jsonl")


def test_a_mixture_travels_to_worker_processes(tmp_path: Path, paths: list[str]) -> None:
    mixture = Inputs(paths=paths, cache=Cache(folder=tmp_path / "cache")).open()
    assert mixture[0] == {"text": "a.jsonl 0"}
    copy = pickle.loads(pickle.dumps(mixture))
    assert copy[49] == {"text": "b.jsonl 29"}
    assert copy.where(49).endswith("b.jsonl:30")
    assert copy.fingerprint() == mixture.fingerprint()


def test_the_limit_runs_over_the_paths(tmp_path: Path, paths: list[str]) -> None:
    inputs = Inputs(paths=paths, max_samples=25, cache=Cache(folder=tmp_path / "cache"))
    mixture = inputs.open()
    assert len(mixture) == 25
    assert mixture[24] == {"text": "b.jsonl 4"}


def test_what_is_wrong_with_a_mixture_is_said(tmp_path: Path, paths: list[str]) -> None:
    cache = Cache(folder=tmp_path / "cache")
    for inputs, line in (
        (Inputs(paths=paths, mix=paths, cache=cache), "both name rows"),
        (Inputs(mix=paths, max_samples=3, cache=cache), "cannot limit a mixture"),
        (Inputs(paths=paths, validation_fraction=0.7, cache=cache), "between 0 and 0.5, got 0.7"),
        (Inputs(mix=[f"{paths[0]}:0"], cache=cache), "weights over 0"),
        (Inputs(mix=[f"{paths[0]}:nan"], cache=cache), "weights over 0"),
        (Inputs(mix=[paths[0], f"{paths[0]}:2"], cache=cache), "is given twice"),
        (Inputs(mix=["none.jsonl:2"], cache=cache), "data.mix must name files, got 'none.jsonl'"),
    ):
        with pytest.raises(UserError, match=line):
            inputs.check()
    with pytest.raises(UserError, match="holds out none"):
        Inputs(paths=paths, max_samples=1, validation_fraction=0.001, cache=cache).open(
            held_out=True
        )


def test_a_colon_in_a_path_is_no_weight() -> None:
    assert split_weight("openai/gsm8k:main") == ("openai/gsm8k:main", 1.0)
    assert split_weight("openai/gsm8k:main:0.5") == ("openai/gsm8k:main", 0.5)
    assert split_weight("rows.jsonl") == ("rows.jsonl", 1.0)

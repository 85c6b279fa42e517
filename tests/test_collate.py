"""Samples to tensors: padded or packed, positions, masks, other keys, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_nodes import odb_loader
from odb_nodes.collate import PadCollate
from odb_nodes.errors import SampleError
from odb_nodes.pack import PackCollate
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens

TWO = [
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "name": "a"},
    {"input_ids": [8], "labels": [8], "name": "b"},
]


def test_padded_rows_by_example() -> None:
    batch = PadCollate(positions=True)(TWO)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]
    assert batch["positions"].tolist() == [[0, 1, 2], [0, 0, 1]]
    assert batch["name"] == ["a", "b"]
    assert batch["input_ids"].dtype == torch.int64


def test_a_packed_row_by_example() -> None:
    batch = PadCollate(layout="packed", pad_to_multiple_of=3)(TWO)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7, 8, -100, -100]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0, 0, 1]]


rows = st.lists(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=9), min_size=1, max_size=6)


@settings(deadline=None)
@given(rows, st.integers(1, 8), st.sampled_from(["padded", "packed"]), st.sampled_from("ant"))
def test_every_token_is_there_once_and_the_rest_is_padding(
    rows: list[list[int]], multiple: int, layout: Any, kind: str
) -> None:
    make: Any = {"a": np.array, "n": list, "t": torch.tensor}[kind]
    collate = PadCollate({"input_ids": -7}, pad_to_multiple_of=multiple, layout=layout)
    ids = collate([{"input_ids": make(row)} for row in rows])["input_ids"]
    assert ids.shape[1] % multiple == 0
    real = max(map(len, rows)) if layout == "padded" else sum(map(len, rows))
    assert ids.shape[1] - real < multiple
    assert ids[ids != -7].tolist() == [token for row in rows for token in row]
    if layout == "padded":
        assert [row[: len(r)].tolist() for row, r in zip(ids, rows, strict=True)] == rows


def test_a_float_key_keeps_its_type() -> None:
    samples = [
        {"weight": np.array([0.5, 1.5], np.float32)},
        {"weight": np.array([2.0], np.float32)},
    ]
    batch = PadCollate({"weight": 0.0})(samples)
    assert batch["weight"].dtype == torch.float32
    assert batch["weight"].tolist() == [[0.5, 1.5], [2.0, 0.0]]


def test_a_key_to_pad_that_no_sample_has_is_left_out() -> None:
    assert set(PadCollate()([{"input_ids": [1]}])) == {"input_ids"}


def test_collating_does_not_touch_the_samples() -> None:
    ids = np.array([1, 2])
    batch = PadCollate()([{"input_ids": ids}])
    batch["input_ids"][0, 0] = 99
    assert ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([{"input_ids": [1, 2], "labels": [1]}], "differ in length"),
        ([{"input_ids": [1], "x": 1}, {"input_ids": [1]}], "a sample has keys"),
        ([{"input_ids": [1]}, {"labels": [1]}], "a sample has keys"),
        ([{"pixels": [1]}], "no key to pad"),
        ([{"input_ids": [[1]]}], "one value per token"),
    ],
)
def test_samples_that_do_not_match_are_refused(samples: list[Any], told: str) -> None:
    with pytest.raises(SampleError, match=told):
        PadCollate()(samples)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        PadCollate(pad_to_multiple_of=0)
    with pytest.raises(ValueError, match="'padded' or 'packed', got 'x'"):
        PadCollate(layout="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "collate", [lambda pad=None: PadCollate(pad), lambda pad=None: PackCollate(pad=pad)]
)
def test_padding_values_of_ones_own_come_on_top_of_the_defaults(collate: Any) -> None:
    samples = [
        {"input_ids": [1] * n, "attention_mask": [1] * n, "scores": [0.5] * n} for n in (2, 3)
    ]
    batch = collate({"scores": -1.0})(samples)
    for key in ("input_ids", "attention_mask", "scores"):
        assert isinstance(batch[key], torch.Tensor), key
        assert batch[key].shape == batch["input_ids"].shape
    with pytest.raises(SampleError, match=r"'scores' has one value per token.*pad=\{'scores': 0\}"):
        collate()(samples)
    assert collate({"scores": None})(samples)["scores"] == [[0.5] * 2, [0.5] * 3]
    assert collate({"attention_mask": None, "scores": 0})(samples)["attention_mask"][0] == [1, 1]
    with pytest.raises(ValueError, match=r"pad\['scores'\] must be a number or None, got 'x'"):
        collate({"scores": "x"})


def test_what_is_no_value_per_token_is_passed_on() -> None:
    samples = [{"input_ids": [1] * n, "words": ["a"] * n, "box": [1, 2, 3, 4]} for n in (2, 3)]
    batch = PadCollate()(samples)
    assert batch["words"] == [["a"] * 2, ["a"] * 3]
    assert batch["box"] == [[1, 2, 3, 4]] * 2


def test_an_idle_step_comes_to_a_collate_as_one_masked_sample() -> None:
    def work(rank: int, transport: Any) -> list[Any]:
        def collate(samples: Any) -> list[Any]:
            return [dict(sample) for sample in samples]

        data = Tokens([40] * 9)
        with odb_loader(data, token_budget=40, transport=transport, collate=collate) as loader:
            return [batch.tensors for batch in loader if batch.info.idle]

    idle = InProcessWorld(2).run(work)
    assert [len(steps) for steps in idle] == [0, 1]
    [[sample]] = idle[1]
    assert set(sample) == {"input_ids", "labels"}
    assert set(np.asarray(sample["labels"]).tolist()) == {-100}

"""Packed rows as tensors: shapes, positions, cumulative lengths, and what is refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.packed import Packed
from odb_nodes.batching.window import Window, age_of, make_key
from odb_nodes.errors import SampleError
from odb_nodes.pack import PackCollate

TWO = [
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "name": "a"},
    {"input_ids": [8, 9], "labels": [8, 9], "name": "b"},
]


def test_a_fixed_row_by_example() -> None:
    batch = PackCollate(8, shape="fixed")(TWO)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7, 8, 9, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 5, 8]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["max_seqlen"] == 8
    assert batch["name"] == ["a", "b"]


def test_a_dynamic_row_is_as_long_as_it_must_be() -> None:
    assert PackCollate(8)(TWO)["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    batch = PackCollate(8, pad_to_multiple_of=4)(TWO)
    assert batch["cu_seqlens"].tolist() == [0, 3, 5, 8]
    assert batch["max_seqlen"] == 3
    assert PackCollate()(TWO)["input_ids"].shape == (1, 5)


def test_rows_close_at_the_first_document_that_does_not_fit() -> None:
    batch = PackCollate(4, rows=3, shape="fixed")(TWO)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0], [8, 9, 0, 0], [0, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 1], [0, 1, 2, 3]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 4, 6, 8, 12]
    assert PackCollate(4, rows=3)(TWO)["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]


def test_documents_and_long_padding_can_be_cut_to_size() -> None:
    batch = PackCollate(12, shape="fixed", pad_documents_to=4, longest_padding=3)(TWO)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0, 8, 9, 0, 0, 0, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0]]
    assert batch["cu_seqlens"].tolist() == [0, 4, 8, 11, 12]


def test_cumulative_lengths_of_a_fixed_number_of_documents() -> None:
    collate = PackCollate(8, shape="fixed", max_documents=5)
    assert collate(TWO)["cu_seqlens"].tolist() == [0, 3, 5, 8, 8, 8]
    with pytest.raises(SampleError, match="at most 5 documents"):
        collate([{"input_ids": [1]}] * 5)


def test_the_forms_of_padding_free_models() -> None:
    batch = PackCollate(8, form="transformers")(TWO)
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9]]  # they shift across documents
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 5]
    assert (batch["max_length_q"], batch["max_length_k"]) == (3, 3)
    assert set(PackCollate(8, form="position_ids")(TWO)) == {
        "input_ids",
        "labels",
        "position_ids",
        "name",
    }
    assert TWO[1]["labels"] == [8, 9]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    rows=st.integers(1, 3),
    shape=st.sampled_from(["fixed", "dynamic"]),
    kind=st.sampled_from("ant"),
)
def test_groups_of_the_packed_layout_fit_and_every_token_is_there_once(
    lengths: list[int], rows: int, shape: Any, kind: str
) -> None:
    make: Any = {"a": np.array, "n": list, "t": torch.tensor}[kind]
    window = Window(TokenBudget(12 * rows), layout=Packed(rows=rows))
    for age, length in enumerate(lengths):
        window.add(make_key(length, age))
    collate = PackCollate(12, rows=rows, shape=shape, pad={"input_ids": -7})
    while len(window):
        group = [age_of(key) for key in window.take_best()]
        samples = [np.arange(lengths[age]) + 100 * age for age in group]
        batch = collate([{"input_ids": make(sample)} for sample in samples])
        ids, positions = batch["input_ids"], batch["position_ids"]
        assert ids[ids != -7].tolist() == np.concatenate(samples).tolist()
        assert ids.shape == positions.shape
        assert shape == "dynamic" or ids.shape == (rows, 12)
        ends = batch["cu_seqlens"].tolist()
        assert ends[-1] == ids.numel()
        assert [i for i, p in enumerate(positions.flatten().tolist()) if p == 0] == ends[:-1]
        documents = [ids.flatten()[a:b].tolist() for a, b in pairwise(ends)]
        assert [d for d in documents if -7 not in d] == [s.tolist() for s in samples]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"shape": "square"}, "shape must be one of"),
        ({"form": "x"}, "form must be one of"),
        ({"shape": "fixed"}, "row_tokens is needed"),
        ({"form": "position_ids", "max_documents": 3}, "does not have"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        PackCollate(**options)


def test_samples_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SampleError, match="need 2 rows of 4 tokens, rows is 1"):
        PackCollate(4)(TWO)
    with pytest.raises(SampleError, match="longer than a row of fixed shape"):
        PackCollate(4, shape="fixed")([{"input_ids": [1] * 5}])
    assert PackCollate(4)([{"input_ids": [1] * 5}])["input_ids"].shape == (1, 5)

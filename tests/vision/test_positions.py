"""Positions by frame, row and column, as transformers computes them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2_5_VLModel, Qwen3VLModel

from odb_nodes import SampleError
from odb_nodes.vision import grid_positions, restarted_grid_positions

MERGE = 2
PARTS = st.lists(
    st.one_of(
        st.integers(1, 6),  # words
        st.tuples(st.just(1), st.integers(1, 5), st.integers(1, 5)),  # pictures, in tokens
    ),
    min_size=1,
    max_size=8,
)


def document(parts: Sequence[Any]) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Which tokens are pictures', and their grids in patches; a word between two pictures."""
    marks: list[int] = []
    grids = []
    for part in parts:
        if isinstance(part, int):
            marks += [0] * part
        else:
            grids.append((part[0], part[1] * MERGE, part[2] * MERGE))
            marks += [0] * (marks[-1:] == [1]) + [1] * (part[1] * part[2])
    return np.array(marks, bool), grids


def of_transformers(model: Any, is_picture: np.ndarray, grids: Any) -> np.ndarray:
    vision = SimpleNamespace(spatial_merge_size=MERGE, tokens_per_second=2)
    stub = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    stub.get_vision_position_ids = lambda *a, **k: model.get_vision_position_ids(stub, *a, **k)
    ids = torch.ones(1, len(is_picture), dtype=torch.long)
    kinds = torch.from_numpy(is_picture).int()[None]
    found, _ = model.get_rope_index(stub, ids, kinds, torch.tensor(grids) if grids else None)
    return np.asarray(found[:, 0].T)


@pytest.mark.parametrize("model", [Qwen2_5_VLModel, Qwen3VLModel])
@settings(deadline=None, max_examples=60)
@given(parts=PARTS)
def test_positions_of_a_document_are_those_of_transformers(model: Any, parts: Any) -> None:
    is_picture, grids = document(parts)
    found = grid_positions(is_picture, grids, MERGE)
    assert np.array_equal(found, of_transformers(model, is_picture, grids))


@settings(deadline=None, max_examples=60)
@given(documents=st.lists(PARTS, min_size=1, max_size=4))
def test_documents_one_after_the_other_have_the_positions_of_each_alone(documents: Any) -> None:
    made = [document(parts) for parts in documents]
    alone = np.concatenate([grid_positions(marks, grids, MERGE) for marks, grids in made])
    together = restarted_grid_positions(
        np.concatenate([np.arange(len(marks)) for marks, _ in made]),
        np.concatenate([marks for marks, _ in made]),
        [grid for _, grids in made for grid in grids],
        MERGE,
    )
    assert np.array_equal(together, alone)


def test_the_worked_example_holds() -> None:
    found = grid_positions(np.array([0, 1, 1, 0], bool), [(1, 2, 4)], MERGE)
    assert found.T.tolist() == [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]


def test_pictures_side_by_side_are_told_apart_by_their_grids() -> None:
    """Transformers takes both for one picture and fails."""
    found = grid_positions(np.array([1, 1, 1], bool), [(1, 2, 2), (1, 2, 4)], MERGE)
    assert found.tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 2]]


@pytest.mark.parametrize(
    ("marks", "grids", "message"),
    [
        ([0, 1, 0], [(1, 2, 4)], "have 2 tokens, the text holds 1"),
        ([0, 1, 0], [], "have 0 tokens, the text holds 1"),
        ([1, 0, 1], [(1, 2, 4)], "one piece"),
    ],
)
def test_pictures_that_do_not_match_their_text_are_refused(
    marks: list[int], grids: Any, message: str
) -> None:
    with pytest.raises(SampleError, match=message):
        grid_positions(np.array(marks, bool), grids, MERGE)

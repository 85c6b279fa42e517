"""Torchdata's own pattern of what a node and its state must do, over each of our nodes."""

from typing import Any

import numpy as np
import pytest
import torch
from torchdata.nodes import Loader

from tests.states import make_node


def _plain(item: Any) -> Any:
    if isinstance(item, torch.Tensor | np.ndarray):
        return item.tolist()
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return [_plain(value) for value in item]
    return item


@pytest.mark.slow
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "kind",
    ["view", "mapper", "grouping", "align", "stream", "stream_grouping", "stream_align"],
)
def test_a_node_resumes_as_torchdata_asks(kind: str, workers: int, restart: bool) -> None:
    loader: Any = Loader(make_node(kind, workers), restart_on_stop_iteration=restart)

    def half_and_rest() -> tuple[list[Any], list[Any], Any, Any]:
        iterator, half = iter(loader), []
        for _ in range(middle):
            half.append(_plain(next(iterator)))
        state = loader.state_dict()
        rest = _plain(list(iterator))
        return half, rest, state, loader.state_dict()

    middle = 2
    initial = loader.state_dict()
    half_0, rest_0, middle_0, end_0 = half_and_rest()
    half_1, rest_1, middle_1, _ = half_and_rest()
    assert len(half_0 + rest_0) > middle
    for state, expected in (
        (middle_0, [rest_0, half_1 + rest_1]),
        (middle_1, [rest_1]),
        (initial, [half_0 + rest_0, half_1 + rest_1]),
        (end_0, [half_1 + rest_1] if restart else [[], half_1 + rest_1]),
    ):
        loader.load_state_dict(state)
        for epoch in expected:
            assert _plain(list(loader)) == epoch
    fresh: Any = Loader(make_node(kind, workers), restart_on_stop_iteration=restart)
    fresh.load_state_dict(middle_1)
    assert _plain(list(fresh)) == rest_1

"""Samples and states as bytes: exact, refused early, and the same bytes for ever."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from odb_nodes import SampleError, StateError, pack_states, unpack_states
from odb_nodes.state.content import pack_sample, unpack_sample
from odb_nodes.types import Sample, View

GOLDEN = Path(__file__).parents[1] / "golden"


def back(data: dict[str, Any]) -> dict[str, Any]:
    sample = unpack_sample(pack_sample(Sample(View(1, 2, 3), data, 4)))
    assert sample[0] == View(1, 2, 3)
    assert sample.length == 4
    return dict(sample.data)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.float8_e4m3fn,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_tensors_keep_dtype_shape_and_every_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 3).to(dtype)
    found = back({"x": tensor})["x"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    left, right = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found, tensor))
    assert left.equal(right)


def test_views_of_a_larger_tensor_keep_only_their_own_values() -> None:
    whole = torch.arange(1_000_000).reshape(1000, 1000)
    sample = Sample(View(0, 0, 0), {"x": whole[:2, ::500], "y": whole.t()[:1, :3]}, 1)
    assert len(pack_sample(sample)) < 1000
    found = unpack_sample(pack_sample(sample)).data
    assert found["x"].tolist() == [[0, 500], [1000, 1500]]
    assert found["y"].tolist() == [[0, 1000, 2000]]


@pytest.mark.parametrize("dtype", ["bool", "u1", "i2", ">i4", "i8", "f2", "f4", ">f8", "u2", "u8"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
def test_arrays_keep_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    found = back({"x": array})["x"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.shape == shape
    assert (found == array).all()


def test_everything_else_comes_back_as_it_was() -> None:
    data: dict[str, Any] = {
        "text": "a \u2028 b \U0001f600",
        "none": None,
        "number": [1, -(1 << 70), 0.1, float("inf"), True],
        "bytes": b"\x00\xff",
        "tuple": (1, (2, [3])),
        "dict": {"": {"x y": []}},
        "keys": {3: {"$bytes": 1}, "$dict": [2]},
        "scalar": np.float32(0.1),
    }
    found = back(data)
    assert found == data
    assert type(found["tuple"]) is tuple
    assert type(found["scalar"]) is np.float32


class Odd:
    def __repr__(self) -> str:
        return "Odd()"


@pytest.mark.parametrize(
    "value",
    [
        Odd(), {1, 2}, 1j, {(1,): 4}, torch.eye(2).to_sparse(), np.array([Odd()]),
        np.array(["text"]), np.array([1j]),
    ],
    ids=repr,
)  # fmt: skip
def test_what_cannot_be_packed_is_named_with_its_place(value: Any) -> None:
    sample = Sample(View(0, 0, 0), {"ok": 1, "list": [0, value]}, 1)
    with pytest.raises(SampleError, match=r"data\['list'\]\[1\] is"):
        pack_sample(sample)


@pytest.mark.parametrize("value", [(1,), {1: 2}, {"$bytes": 3}, np.int64(3), Odd()], ids=repr)
def test_states_that_are_not_plain_are_named_with_their_place(value: Any) -> None:
    with pytest.raises(StateError, match=r"state 1\['a'\]\[0\]"):
        pack_states([{}, {"a": [value]}])


# These bytes must never change: checkpoints hold them. Samples are of format 1, states of format 2.

SAMPLE = Sample(
    View(1, 22, 333),
    {
        "input_ids": torch.tensor([1, 2, 3]),
        "scores": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
        "mask": np.array([True, False]),
        "text": "abc",
        "raw": b"\x01\x02",
        "pair": (1, 2.5),
        "empty": torch.empty((0, 4)),
    },
    3,
)
STATES = [
    {"version": 1, "held": b"\x01\x00", "list": [1, "a", None]},
    {"held": b"", "x": {"y": 1.5}},
]


def test_golden_bytes_of_a_sample() -> None:
    golden = (GOLDEN / "sample_v1.bin").read_bytes()
    assert pack_sample(SAMPLE) == golden
    found = unpack_sample(golden)
    assert found.data["scores"].dtype == torch.bfloat16
    assert found.data["scores"].tolist() == [0.5, 1.5]
    assert found.data["pair"] == (1, 2.5)
    assert found.view == SAMPLE.view


def test_golden_bytes_of_states() -> None:
    golden = (GOLDEN / "states_v2.bin").read_bytes()
    assert pack_states(STATES) == golden
    assert unpack_states(golden) == STATES


def test_golden_bytes_of_version_1_are_read() -> None:
    assert unpack_states((GOLDEN / "states_v1.bin").read_bytes()) == STATES

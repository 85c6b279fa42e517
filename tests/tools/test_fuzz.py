"""Damaged and hostile states: only ``StateError`` comes out, and nothing of them is executed."""

import json
import pickle
import random
from typing import Any

import pytest

from odb_nodes import (
    StateError,
    describe_state,
    pack_states,
    reshard_states,
    unpack_states,
    verify_states,
)
from odb_nodes.state.codec import _META
from tools import fuzz


def a_state() -> dict[str, Any]:
    return fuzz.state_after(fuzz.position_node(), 4)


def test_only_state_errors_come_out_of_mutated_states() -> None:
    lines: list[str] = []
    assert fuzz.fuzz(400, seed=1, told=lines.append) == 0, lines
    assert "failures=0" in lines[-1]


def test_every_single_flipped_bit_or_cut_of_a_blob_is_refused_or_harmless() -> None:
    state = a_state()
    blob = pack_states([state])
    rng = random.Random(0)
    for at in rng.sample(range(len(blob)), 200):
        flipped = bytearray(blob)
        flipped[at] ^= 1 << rng.randrange(8)
        for bad in (bytes(flipped), blob[:at]):
            try:
                assert unpack_states(bad) == [state]
            except StateError:
                continue


def test_a_blob_of_another_version_is_refused_by_its_number() -> None:
    blob = pack_states([a_state()])
    other = blob.replace(b'\\"version\\": 2', b'\\"version\\": 7', 1)
    assert other != blob
    with pytest.raises(StateError, match="version 7 is not known"):
        unpack_states(other)
    state = {**a_state(), "version": 9}
    with pytest.raises(StateError, match="version 9 is not 2"):
        describe_state(state)


class _Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was executed",))


def test_a_pickle_is_not_executed() -> None:
    bomb = pickle.dumps(_Bomb())
    with pytest.raises(StateError):
        unpack_states(bomb)
    state = fuzz.state_after(fuzz.content_node(), 3)
    state["source"]["held"][0] = bomb
    with pytest.raises(StateError, match="damaged"):
        fuzz.content_node().reset(state)


def test_a_blob_cannot_name_its_bytes_twice_to_grow() -> None:
    import hashlib

    import numpy as np
    import safetensors.numpy

    data = bytes(1000)
    body = json.dumps([{"$bytes": 1000}] * 1000)
    check = hashlib.sha256(body.encode() + data).hexdigest()
    meta = json.dumps({"version": 1, "sha256": check, "states": body})
    blob = safetensors.numpy.save({"data": np.frombuffer(data, np.uint8)}, {_META: meta})
    with pytest.raises(StateError, match="does not hold"):
        unpack_states(blob)


@pytest.mark.parametrize("world_size", [1 << 40, (1 << 62) - 1])
def test_a_huge_world_or_epoch_costs_nothing(world_size: int) -> None:
    state = a_state()
    state["world_size"] = state["source"]["source"]["view"]["cursor"]["world_size"] = world_size
    with pytest.raises(StateError):
        reshard_states([state], 2)
    state = a_state()
    state["source"]["source"]["view"]["cursor"]["num_samples"] = world_size
    assert len(pack_states(reshard_states([state], 2))) < 10_000
    assert "not of 60" in verify_states([state], 60)
    with pytest.raises(StateError, match="dataset length"):
        fuzz.position_node().reset(state)


def test_a_state_within_itself_is_refused() -> None:
    state = a_state()
    state["source"]["source"] = state
    loop: dict[str, Any] = {}
    loop["source"] = loop
    for bad in (state, loop):
        with pytest.raises(StateError):
            fuzz.position_node().reset(bad)
        with pytest.raises(StateError):
            reshard_states([bad], 2)

"""The states of all ranks as one blob of bytes. Reading one executes nothing.

JSON and safetensors only, with a checksum over all of it.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from odb_nodes.errors import StateError
from odb_nodes.state.schema import VERSION

_META = "odb"  # the one metadata entry of the container: several would come in random order
_BYTES = "$bytes"


def pack_states(states: Sequence[Any]) -> bytes:
    """States of all ranks as one blob: safetensors with one tensor, and JSON. Deterministic.

    Equal states give equal bytes, so ranks that gathered the same states hold the same blob.

    Args:
        states: Plain values: None, bool, int, float, str, bytes, and lists and dicts of them.
    Raises:
        StateError: A state holds something else; names its place.
    """
    chunks: list[bytes] = []
    plain = [_to_json(state, chunks, f"state {i}") for i, state in enumerate(states)]
    data = b"".join(chunks)
    body = json.dumps(plain, separators=(",", ":"))
    check = hashlib.sha256(body.encode() + data).hexdigest()
    meta = json.dumps({"version": VERSION, "sha256": check, "states": body}, sort_keys=True)
    return safetensors.numpy.save({"data": np.frombuffer(data, np.uint8)}, {_META: meta})


def unpack_states(blob: Any) -> list[Any]:
    """Inverse of ``pack_states``; never needs more than a few times the memory of the blob.

    Raises:
        StateError: Truncated, altered, of another version, or not a blob of ours at all.
    """
    if not isinstance(blob, bytes):
        raise StateError(f"a state blob must be bytes, got {type(blob).__name__}")
    try:
        return _unpack(blob)
    except StateError:
        raise
    except Exception as error:  # whatever damage makes the parsers trip over
        raise StateError(f"not a state blob: {error!r:.200}") from None


def _unpack(blob: bytes) -> list[Any]:
    header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    meta = json.loads(header["__metadata__"][_META])
    if meta["version"] != VERSION:
        raise StateError(f"state blob version {meta['version']!r:.40} is not {VERSION}")
    data = safetensors.numpy.load(blob)["data"].tobytes()
    body = meta["states"]
    if hashlib.sha256(body.encode() + data).hexdigest() != meta["sha256"]:
        raise StateError("state blob is damaged: its checksum does not match")
    states = json.loads(body)
    if not isinstance(states, list):
        raise StateError("not a state blob: it holds no list of states")
    reader = _Reader(data)
    states = [reader.restore(state) for state in states]
    if reader.at != len(data):
        raise StateError(f"state blob names {reader.at} of its {len(data)} data bytes")
    return states


class _Reader:
    """Hands out the data bytes in order, each once, so that no blob grows by naming them often."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def restore(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.restore(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _BYTES in value:
            return self._take(value[_BYTES])
        return {key: self.restore(value[key]) for key in value}

    def _take(self, size: Any) -> bytes:
        if not isinstance(size, int) or not 0 <= size <= len(self._data) - self.at:
            raise StateError(f"state blob names {size!r:.40} data bytes that it does not hold")
        self.at += size
        return self._data[self.at - size : self.at]


def _to_json(value: Any, chunks: list[bytes], where: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        chunks.append(value)
        return {_BYTES: len(value)}
    if isinstance(value, list):
        return [_to_json(item, chunks, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == _BYTES:
                raise StateError(
                    f"{where} has the key {key!r}: keys must be text other than $bytes"
                )
        return {key: _to_json(value[key], chunks, f"{where}[{key!r}]") for key in sorted(value)}
    raise StateError(f"a state holds plain values only, got {type(value).__name__} in {where}")

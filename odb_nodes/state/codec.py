"""States as bytes or as JSON text. Reading either executes nothing.

``pack_states`` holds the states of all ranks in one blob: JSON and safetensors only, with a
checksum over all of it. ``state_to_json`` is for checkpoints that are text.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from odb_nodes.errors import StateError

_META = "odb"  # the one metadata entry of the container: several would come in random order
_FORMAT = 2
_SIZES = {1: "$bytes", 2: "$size"}  # by format: stands for the next so many bytes of the data
_SIZE = _SIZES[_FORMAT]
_BYTES = "$bytes"  # in JSON text: base64
_ATOMS = {bool, int, float, str}
_TAGS = {_SIZE, *_SIZES.values(), _BYTES}


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
    meta = json.dumps({"version": _FORMAT, "sha256": check, "states": body}, sort_keys=True)
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
    if meta["version"] not in _SIZES:
        raise StateError(
            f"state blob version {meta['version']!r:.40} is not known: it was saved by another "
            "version of odb-nodes"
        )
    data = safetensors.numpy.load(blob)["data"].tobytes()
    body = meta["states"]
    if hashlib.sha256(body.encode() + data).hexdigest() != meta["sha256"]:
        raise StateError("state blob is damaged: its checksum does not match")
    states = json.loads(body)
    if not isinstance(states, list):
        raise StateError("not a state blob: it holds no list of states")
    reader = _Reader(data, _SIZES[meta["version"]])
    states = [reader.restore(state) for state in states]
    if reader.at != len(data):
        raise StateError(f"state blob names {reader.at} of its {len(data)} data bytes")
    return states


class _Reader:
    """Hands out the data bytes in order, each once, so that no blob grows by naming them often."""

    def __init__(self, data: bytes, tag: str) -> None:
        self._data = data
        self._tag = tag
        self.at = 0

    def restore(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.restore(item) for item in value]
        if not isinstance(value, dict):
            return value
        if self._tag in value:
            return self._take(value[self._tag])
        return {key: self.restore(value[key]) for key in value}

    def _take(self, size: Any) -> bytes:
        if not isinstance(size, int) or not 0 <= size <= len(self._data) - self.at:
            raise StateError(f"state blob names {size!r:.40} data bytes that it does not hold")
        self.at += size
        return self._data[self.at - size : self.at]


def _to_json(value: Any, chunks: list[bytes], where: str) -> Any:
    if value is None or type(value) in _ATOMS:
        return value
    if isinstance(value, bytes):
        chunks.append(value)
        return {_SIZE: len(value)}
    if isinstance(value, list):
        return [_to_json(item, chunks, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            _check_key(key, where)
        return {key: _to_json(value[key], chunks, f"{where}[{key!r}]") for key in sorted(value)}
    raise StateError(f"a state holds plain values only, got {type(value).__name__} in {where}")


def state_to_json(state: Any) -> str:
    """A rank's state as JSON text; bytes as base64 under ``"$bytes"``.

    Raises:
        StateError: The state holds something that is not a plain value; names its place.
    """
    return json.dumps(_to_text(state, "state"), allow_nan=False)


def state_from_json(text: str) -> Any:
    """Inverse of ``state_to_json``.

    Raises:
        StateError: Not JSON, or bytes that are not base64.
    """
    try:
        return _from_text(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"not a state as JSON: {error!r:.200}") from None


def _to_text(value: Any, where: str) -> Any:
    if value is None or type(value) in _ATOMS:
        return value
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_to_text(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            _check_key(key, where)
        return {key: _to_text(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise StateError(f"a state holds plain values only, got {type(value).__name__} in {where}")


def _from_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_text(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _BYTES in value:
        return base64.b64decode(value[_BYTES], validate=True)
    return {key: _from_text(item) for key, item in value.items()}


def _check_key(key: Any, where: str) -> None:
    if not isinstance(key, str) or key in _TAGS:
        raise StateError(f"{where} has the key {key!r}: keys must be text other than {_TAGS}")

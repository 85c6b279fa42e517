"""The states of all ranks as one blob of bytes. Reading one executes nothing.

JSON and safetensors only, with a checksum over all of it.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from odb_nodes.errors import StateError
from odb_nodes.state import VERSION

_META = "odb"  # the one metadata entry of the container: several would come in random order


def pack_states(states: Sequence[Any]) -> bytes:
    """States of all ranks as one blob: safetensors with one tensor, and JSON. Deterministic.

    Equal states give equal bytes, so ranks that gathered the same states hold the same blob.
    """
    chunks: list[bytes] = []
    plain = [_to_json(state, chunks) for state in states]
    data = b"".join(chunks)
    body = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    check = hashlib.sha256(body.encode() + data).hexdigest()
    meta = json.dumps({"version": VERSION, "sha256": check, "states": body}, sort_keys=True)
    return safetensors.numpy.save({"data": np.frombuffer(data, np.uint8)}, {_META: meta})


def unpack_states(blob: Any) -> list[Any]:
    """Inverse of ``pack_states``.

    Raises:
        StateError: Truncated, altered, of another version, or not a blob of ours at all.
    """
    try:
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        meta = json.loads(header["__metadata__"][_META])
        if meta["version"] != VERSION:
            raise StateError(f"state blob version {meta['version']!r:.40} is not {VERSION}")
        data = safetensors.numpy.load(bytes(blob))["data"].tobytes()
        body = meta["states"]
        if hashlib.sha256(body.encode() + data).hexdigest() != meta["sha256"]:
            raise StateError("state blob is damaged: its checksum does not match")
        states = _from_json(json.loads(body), data)
    except StateError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"not a state blob: {error!r:.200}") from None
    except (safetensors.SafetensorError, OverflowError, MemoryError) as error:
        raise StateError(f"not a state blob: {error!r:.200}") from None
    if not isinstance(states, list):
        raise StateError("not a state blob: it holds no list of states")
    return states


def _to_json(value: Any, chunks: list[bytes]) -> Any:
    if isinstance(value, bytes):
        start = sum(map(len, chunks))
        chunks.append(value)
        return {"$bytes": [start, len(value)]}
    if isinstance(value, list):
        return [_to_json(item, chunks) for item in value]
    if isinstance(value, dict):
        return {key: _to_json(item, chunks) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise StateError(f"a state holds plain values only, got {type(value).__name__}")


def _from_json(value: Any, data: bytes) -> Any:
    if isinstance(value, list):
        return [_from_json(item, data) for item in value]
    if not isinstance(value, dict):
        return value
    if "$bytes" in value:
        start, size = value["$bytes"]
        return data[int(start) : int(start) + int(size)]
    return {key: _from_json(item, data) for key, item in value.items()}

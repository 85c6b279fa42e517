"""Samples as bytes, for sources that cannot rebuild them: safetensors and JSON, no pickle."""

import base64
import json
from typing import Any

import numpy as np
import safetensors.torch
import torch

from odb_nodes.errors import SampleError, StateError
from odb_nodes.state.checks import read_count, shorten
from odb_nodes.types import Sample, View

_META = "odb"  # the one metadata entry of the safetensors container
_TENSOR, _ARRAY, _BYTES, _TUPLE, _DICT = "$tensor", "$array", "$bytes", "$tuple", "$dict"
_NUMBERS = ("epoch", "position", "index", "length")
_ATOMS = {bool, int, float, str}
_TAGS = {_TENSOR, _ARRAY, _BYTES, _TUPLE, _DICT}


def pack_sample(sample: Sample) -> bytes:
    """A sample as bytes: tensors and arrays exactly (dtype, shape), the rest as JSON.

    Raises:
        SampleError: A value is of a type that cannot be packed; names its key.
    """
    tensors: dict[str, torch.Tensor] = {}
    data = _to_json(sample.data, tensors, "data")
    meta = json.dumps({"view": list(sample.view), "length": sample.length, "data": data})
    return safetensors.torch.save(tensors, {_META: meta})


def unpack_sample(blob: Any) -> Sample:
    """Inverse of ``pack_sample``.

    Raises:
        StateError: The bytes are not a packed sample.
    """
    meta = _unpack(blob, "a packed sample")
    view = meta.get("view")
    if not isinstance(view, list) or len(view) != 3:
        raise StateError(f"a packed sample's view must be 3 numbers, got {shorten(view)}")
    numbers = dict(zip(_NUMBERS, [*view, meta.get("length")], strict=True))
    epoch, position, index, length = (
        read_count(numbers, name, "a packed sample's") for name in _NUMBERS
    )
    return Sample(View(epoch, position, index), meta["data"], length)


def pack_value(value: Any, what: str) -> bytes:
    """A value other than a sample as bytes, in the same way; ``what`` names it in errors."""
    tensors: dict[str, torch.Tensor] = {}
    data = _to_json(value, tensors, what)
    return safetensors.torch.save(tensors, {_META: json.dumps({"data": data})})


def unpack_value(blob: Any, what: str) -> Any:
    """Inverse of ``pack_value``.

    Raises:
        StateError: The bytes are not a packed value.
    """
    return _unpack(blob, what).get("data")


def _unpack(blob: Any, what: str) -> dict[str, Any]:
    """The JSON part of packed bytes, with its "data" restored."""
    if not isinstance(blob, bytes):
        raise StateError(f"{what} must be bytes, got {type(blob).__name__}")
    try:
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        meta: dict[str, Any] = json.loads(header["__metadata__"][_META])
        tensors = safetensors.torch.load(blob)
        meta["data"] = _from_json(meta["data"], tensors)
    except Exception as error:  # whatever damage makes the parsers trip over
        raise StateError(f"{what} in the state is damaged: {error!r:.200}") from None
    if tensors:
        raise StateError(f"{what} in the state is damaged: {len(tensors)} tensors are not used")
    return meta


def _to_json(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Any:
    """As JSON. Types are compared exactly: a subclass would come back as what it derives from."""
    kind = type(value)
    if value is None or kind in _ATOMS:
        return value
    if kind is torch.Tensor and value.layout == torch.strided:
        return {_TENSOR: _store(value.detach().cpu(), tensors)}
    is_scalar = isinstance(value, np.generic)
    if (kind is np.ndarray or is_scalar) and value.dtype.kind in "biuf":
        array = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
        return {_ARRAY: _store(torch.from_numpy(array), tensors), "scalar": is_scalar}
    if kind is bytes:
        return {_BYTES: base64.b64encode(value).decode()}
    if kind is tuple:
        return {_TUPLE: [_to_json(v, tensors, f"{where}[{i}]") for i, v in enumerate(value)]}
    if kind is list:
        return [_to_json(v, tensors, f"{where}[{i}]") for i, v in enumerate(value)]
    if kind is dict:
        pairs = {key: _to_json(item, tensors, f"{where}[{key!r}]") for key, item in value.items()}
        if all(type(key) is str and key not in _TAGS for key in value):
            return pairs
        if all(type(key) in (str, int) for key in value):  # JSON knows text keys only
            return {_DICT: list(map(list, pairs.items()))}
    raise SampleError(
        f"{where} is a {kind.__name__}, which a checkpoint cannot hold: give plain tensors, "
        "arrays, numbers, text, bytes, tuples, lists or dicts (a subclass of one of them would "
        "come back as its base), or use SampleMapper, which saves positions"
    )


def _store(tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    name = str(len(tensors))
    tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
    return name


def _from_json(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_from_json(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors.pop(value[_TENSOR])
    if _ARRAY in value:
        array = tensors.pop(value[_ARRAY]).numpy()
        return array[()] if value["scalar"] else array
    if _BYTES in value:
        return base64.b64decode(value[_BYTES], validate=True)
    if _TUPLE in value:
        return tuple(_from_json(item, tensors) for item in value[_TUPLE])
    if _DICT in value:
        return {key: _from_json(item, tensors) for key, item in value[_DICT]}
    return {key: _from_json(item, tensors) for key, item in value.items()}

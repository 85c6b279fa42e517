"""Samples as bytes, for sources that cannot rebuild them: safetensors and JSON, no pickle."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch

from odb_nodes.errors import SampleError, StateError
from odb_nodes.types import Sample, View
from odb_nodes.views import natural

_META = "odb"  # the one metadata entry of the safetensors container
_TENSOR, _ARRAY, _BYTES, _TUPLE = "$tensor", "$array", "$bytes", "$tuple"
_NUMBERS = ("epoch", "position", "index", "length")
_TAGS = {_TENSOR, _ARRAY, _BYTES, _TUPLE}


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
    if not isinstance(blob, bytes):
        raise StateError(f"a packed sample must be bytes, got {type(blob).__name__}")
    try:
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        meta = json.loads(header["__metadata__"][_META])
        tensors = safetensors.torch.load(blob)
        data = _from_json(meta["data"], tensors)
        epoch, position, index, length = (
            natural({name: value}, name, "a packed sample's")
            for name, value in zip(_NUMBERS, [*meta["view"], meta["length"]], strict=True)
        )
        if tensors:
            raise StateError(f"{len(tensors)} tensors of it are not used")
        return Sample(View(epoch, position, index), data, length)
    except Exception as error:  # whatever damage makes the parsers trip over
        raise StateError(f"a packed sample in the state is damaged: {error!r:.200}") from None


def _to_json(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return {_TENSOR: _store(value.detach().cpu(), tensors)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        array = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
        return {_ARRAY: _store(torch.from_numpy(array), tensors), "scalar": np.isscalar(value)}
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {_TUPLE: [_to_json(v, tensors, f"{where}[{i}]") for i, v in enumerate(value)]}
    if isinstance(value, list):
        return [_to_json(v, tensors, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, Mapping) and _plain_keys(value):
        return {k: _to_json(v, tensors, f"{where}[{k!r}]") for k, v in value.items()}
    raise SampleError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: give tensors, "
        "arrays, numbers, text, bytes, lists or dicts, or use SampleMapper, which saves positions"
    )


def _plain_keys(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key not in _TAGS for key in value)


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
    return {key: _from_json(item, tensors) for key, item in value.items()}

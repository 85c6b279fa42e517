"""Turning a view into a sample: dataset, transform, length. Runs inside worker processes."""

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from odb_nodes.errors import SampleError
from odb_nodes.types import Sample, View


class IndexedDataset(Protocol):
    """What ``SampleMapper`` needs of a dataset: anything with ``__getitem__`` by index."""

    def __getitem__(self, index: int, /) -> Any: ...


class Outcome(NamedTuple):
    """One view after its transform: a sample, nothing (dropped), or the error it raised."""

    view: View
    data: Any = None
    length: int = 0
    error: Exception | None = None


class _Array(NamedTuple):
    """A tensor on its way between processes: NumPy pickles faster than shared-memory tensors.

    Attributes:
        array: The tensor, or its bytes.
        dtype: Of bytes: what they are.
        shape: Of bytes.
    """

    array: Any
    dtype: torch.dtype | None = None
    shape: torch.Size = torch.Size()


def default_length(data: Mapping[str, Any]) -> int:
    """Length of ``data["input_ids"]``.

    Raises:
        SampleError: There is no such key; names the keys there are.
    """
    try:
        return len(data["input_ids"])
    except (KeyError, TypeError, IndexError):
        keys = sorted(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
        raise SampleError(
            f"a sample needs 'input_ids' to have a length, got {keys}: pass length=..."
        ) from None


def checked_length(length: Callable[[Any], int], data: Any) -> int:
    """``length(data)`` as an int.

    Raises:
        SampleError: It is not an integer, or negative.
    """
    value = length(data)
    try:
        number = value.__index__()
    except AttributeError:
        number = -1
    if not 0 <= number < 1 << 40:
        raise SampleError(f"length must give an integer >= 0, got {value!r}")
    return int(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare:
    """Maps a chunk of views to outcomes; never raises, so that one bad sample has its own error.

    Attributes:
        dataset: Anything with ``__getitem__``.
        transform: ``raw -> data`` or None to drop; with ``rng_seed``, ``(raw, generator) -> data``.
        length: ``data -> tokens``.
        rng_seed: Seeds one generator per view, so that a rebuilt sample is the same sample.
        portable: Outcomes will be pickled.
    """

    dataset: IndexedDataset
    transform: Callable[..., Any] | None
    length: Callable[[Any], int]
    rng_seed: int | None
    portable: bool

    def __call__(self, views: Sequence[View]) -> list[Outcome]:
        return [self._one(view) for view in views]

    def _one(self, view: View) -> Outcome:
        try:
            data = self.dataset[view.index]
            if self.transform is not None:
                data = self._transform(data, view)
            if data is None:
                return Outcome(view)
            length = checked_length(self.length, data)
            return Outcome(view, _pack(data) if self.portable else data, length)
        except SystemExit as error:  # would end the worker, and leave all ranks waiting
            told = SampleError(f"dataset or transform called sys.exit({error.code!r})")
            return Outcome(view, error=self._explained(told, view))
        except Exception as error:
            return Outcome(view, error=self._explained(error, view))

    def _transform(self, data: Any, view: View) -> Any:
        assert self.transform is not None
        if self.rng_seed is None:
            return self.transform(data)
        entropy = (self.rng_seed, view.epoch, view.position)
        return self.transform(data, np.random.Generator(np.random.PCG64(entropy)))

    def _explained(self, error: Exception, view: View) -> Exception:
        error.add_note(f"while preparing dataset[{view.index}] ({view})")
        if not self.portable:
            return error
        error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return SampleError("".join(traceback.format_exception(error)))
        return error


def to_sample(outcome: Outcome, portable: bool) -> Sample:
    """The sample of an outcome that has one; undoes the packing for transport."""
    data = _unpack(outcome.data) if portable else outcome.data
    return Sample(outcome.view, data, outcome.length)


def _pack(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    return {key: _to_array(value) for key, value in data.items()}


def _to_array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_cuda:
        return value
    try:
        return _Array(value.numpy(force=True))
    except TypeError:  # of a dtype that NumPy lacks, as bfloat16
        plain = value.detach().contiguous()
        return _Array(plain.view(-1).view(torch.uint8).numpy(), value.dtype, value.shape)


def _unpack(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    return {key: _from_array(value) for key, value in data.items()}


def _from_array(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    tensor = torch.from_numpy(value.array)
    return tensor if value.dtype is None else tensor.view(value.dtype).view(value.shape)

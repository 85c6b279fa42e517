"""Turning a view into a sample: dataset, transform, length. Runs inside the workers."""

import copyreg
import io
import pickle
import threading
import traceback
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from odb_nodes.errors import SampleError
from odb_nodes.state.permutation import key64
from odb_nodes.types import View
from odb_nodes.workers.randomness import Isolation, seed_generators
from odb_nodes.workers.watch import Slot, begin_item


class IndexedDataset(Protocol):
    """What ``SampleMapper`` needs of a dataset: anything with ``__getitem__`` by index."""

    def __getitem__(self, index: int, /) -> Any: ...


class Outcome(NamedTuple):
    """One view after its transform: a sample, nothing (dropped), or the error it raised."""

    view: View
    data: Any = None
    length: int = 0
    error: Exception | None = None


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
    """Maps views to outcomes; an error is an outcome too, so that each is its own sample's.

    The global generators of ``random``, NumPy and torch are seeded by seed, epoch and position
    before each sample, so that a rebuilt sample is the same sample.

    Attributes:
        dataset: Anything with ``__getitem__``.
        transform: ``raw -> data`` or None to drop; with ``rng_seed``, ``(raw, generator) -> data``.
        length: ``data -> tokens``.
        rng_seed: Seeds one generator per view for ``transform``; None for no such argument.
        seed: Seeds the global generators.
        isolation: Keeps this process's own generators as they are; None in a worker process, which
            has nobody else's.
    """

    dataset: IndexedDataset
    transform: Callable[..., Any] | None
    length: Callable[[Any], int]
    rng_seed: int | None
    seed: int
    isolation: Isolation | None

    def __call__(self, view: View, slot: Slot) -> Outcome:
        key = key64(self.seed, view.epoch, view.position)
        if self.isolation is None:
            seed_generators(key)
            return self._outcome(view, slot)
        with self.isolation.item(key):
            return self._outcome(view, slot)

    def pack(self, outcomes: list[Outcome]) -> bytes:
        """Outcomes as bytes for another process; what cannot travel becomes an error."""
        return pickle.dumps([_packed(outcome) for outcome in outcomes])

    def unpack(self, packed: bytes, views: Sequence[View]) -> list[Outcome]:
        """The outcomes of these views again; what cannot be read becomes an error."""
        return [_unpacked(*pair) for pair in zip(pickle.loads(packed), views, strict=False)]

    def _outcome(self, view: View, slot: Slot) -> Outcome:
        try:
            begin_item(slot, view.index)
            return self._prepared(view)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self._is_the_users_thread():
                raise  # Ctrl-C
            return Outcome(view, error=self._explained(error, view))

    def _prepared(self, view: View) -> Outcome:
        data = self.dataset[view.index]
        if self.transform is not None:
            data = self._transform(data, view)
        if data is None:
            return Outcome(view)
        return Outcome(view, data, checked_length(self.length, data))

    def _transform(self, data: Any, view: View) -> Any:
        assert self.transform is not None
        if self.rng_seed is None:
            return self.transform(data)
        entropy = (self.rng_seed, view.epoch, view.position)
        return self.transform(data, np.random.Generator(np.random.PCG64(entropy)))

    def _is_the_users_thread(self) -> bool:
        return self.isolation is not None and threading.current_thread() is threading.main_thread()

    def _explained(self, error: BaseException, view: View) -> Exception:
        """The error with its index, as one that no ``except Exception`` on its way misses."""
        note = f"while preparing dataset[{view.index}] ({view})"
        told = error if isinstance(error, Exception) else None
        if told is None or isinstance(told, StopIteration):
            told = SampleError(f"dataset, transform or length {_deed(error)} {note}")
            told.__cause__ = error
        try:
            told.add_note(note)
            if self.isolation is None:
                told.add_note(_trace(error))
            return told
        except Exception:  # of an error that lets nothing be added
            told = SampleError(f"dataset, transform or length {_deed(error)} {note}")
            told.__cause__ = error
            return told


def describe_error(error: BaseException) -> str:
    """``repr(error)``, whatever a class of the user's makes of it."""
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


def _deed(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    if isinstance(error, StopIteration):
        return "raised StopIteration (next() of an empty iterator, without a default?)"
    return f"raised {describe_error(error)}"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# Between processes


class _Pickler(pickle.Pickler):
    """Sends tensors as arrays, at any depth: torch's own way goes through a file for each."""

    dispatch_table = ChainMap({}, copyreg.dispatch_table)  # type: ignore[arg-type]


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    try:
        return _from_array, (tensor.numpy(force=True),)
    except TypeError:  # of a dtype that NumPy lacks, as bfloat16
        plain = tensor.detach().contiguous()
        return _from_bytes, (plain.view(-1).view(torch.uint8).numpy(), plain.dtype, plain.shape)


def _from_array(array: Any) -> torch.Tensor:
    return torch.from_numpy(array)


def _from_bytes(raw: Any, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(raw).view(dtype).view(shape)


_Pickler.dispatch_table[torch.Tensor] = _reduce_tensor


def dumps(value: Any) -> bytes:
    """Any value as bytes for another process, tensors as arrays."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _packed(outcome: Outcome) -> bytes:
    """All but the view, which the other side knows: as plain values it is read twice as fast."""
    error = outcome.error
    try:
        packed = dumps((outcome.data, outcome.length, error))
        if error is None or _travels(error, packed):
            return packed
        told = _trace(error)
    except BaseException as refusal:
        told = f"what dataset and transform gave cannot be sent between processes: {_deed(refusal)}"
        if error is not None:
            told = _trace(error)
        told += f" while preparing dataset[{outcome.view.index}]"
    return dumps((None, 0, SampleError(told)))


def _travels(error: Exception, packed: bytes) -> bool:
    """Whether an error arrives as it is, with its notes."""
    try:
        arrived = pickle.loads(packed)[2]
        return type(arrived) is type(error) and arrived.__notes__ == error.__notes__
    except BaseException:
        return False


def _unpacked(packed: bytes, view: View) -> Outcome:
    try:
        return Outcome(view, *pickle.loads(packed))
    except BaseException as error:
        told = f"dataset[{view.index}] arrived from its worker process but {_deed(error)}"
        return Outcome(view, error=SampleError(told))

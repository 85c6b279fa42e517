"""Streams as sources: split over the ranks, transformed in workers, errors kept apart from ends."""

import importlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

from odb_nodes.arguments import choice, integer
from odb_nodes.errors import SampleError
from odb_nodes.nodes.stream_view import StreamView
from odb_nodes.nodes.upstream import BaseNode, Mapper, WatchedMapper
from odb_nodes.samples.prepare import describe_error, dumps
from odb_nodes.samples.user_code import as_error


class Dropped(NamedTuple):
    """What a source yields instead of a sample that it leaves out, so that it is counted.

    Attributes:
        reason: A short word to count by.
        detail: What happened.
    """

    reason: str
    detail: str | None = None


class Failed(NamedTuple):
    """What a worker yields instead of an item whose transform raised.

    Attributes:
        error: To be raised where the item would have arrived.
    """

    error: BaseException


@dataclass(frozen=True, slots=True)
class TransformItem:
    """Applies a transform to one item of a stream, in whatever worker; never raises.

    Attributes:
        transform: ``raw -> data``, None to drop the item.
        on_error: "raise", or "skip" an item whose transform raises.
    """

    transform: Callable[[Any], Any]
    on_error: Literal["raise", "skip"]

    def __call__(self, item: Any) -> Any:
        if isinstance(item, Failed):
            return item
        try:
            data = self.transform(item)
        except BaseException as error:
            if self.on_error == "skip" and isinstance(error, Exception):
                return Dropped("error", repr(error))
            return Failed(as_error(error, "while transforming an item of a stream"))
        return Dropped("filtered") if data is None else data


@dataclass(frozen=True, slots=True)
class TransformPacked:
    """``TransformItem`` in a worker process, from bytes to bytes.

    What cannot be pickled is an error of its item: torchdata's queues lose it, and wait for ever.

    Attributes:
        work: What to do with an item.
    """

    work: TransformItem

    def __call__(self, packed: bytes) -> bytes:
        return _packed(self.work(_unpacked(packed)))


class _Packed(BaseNode[bytes]):
    """The items of a node as bytes for another process; its state is that of the node."""

    def __init__(self, source: BaseNode[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.source.reset(initial_state)

    def next(self) -> Any:
        return _packed(next(self.source))

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.source.state_dict()
        return state


class _Unpacked(_Packed):
    """The items again."""

    def next(self) -> Any:
        return _unpacked(next(self.source))


def _packed(item: Any) -> bytes:
    try:
        return dumps(item)
    except BaseException as error:
        told = f"an item of a stream cannot be sent between processes: {describe_error(error)}"
        if isinstance(item, Failed):
            told = f"while transforming an item of a stream: {describe_error(item.error)}"
        return dumps(Failed(SampleError(told)))


def _unpacked(packed: bytes) -> Any:
    try:
        return pickle.loads(packed)
    except BaseException as error:
        told = f"an item of a stream arrived from another process but {describe_error(error)}"
        return Failed(SampleError(told))


class EveryNth:
    """Every ``world_size``-th item of an iterable, from item ``rank`` on.

    Args:
        iterable: Gives a new iterator at every ``iter``, with the same items on all ranks.
        rank: Data-parallel rank.
        world_size: Data-parallel ranks.
    """

    def __init__(self, iterable: Iterable[Any], rank: int, world_size: int) -> None:
        self._iterable, self._rank, self._world_size = iterable, rank, world_size
        if hasattr(iterable, "set_epoch"):
            self.set_epoch = iterable.set_epoch

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._iterable), self._rank, None, self._world_size)


def split_stream(
    iterable: Any, rank: int, world_size: int, split: Literal["auto", "every", "none"]
) -> Any:
    """This rank's part of a stream.

    Args:
        iterable: The same on all ranks.
        rank: Data-parallel rank.
        world_size: Data-parallel ranks.
        split: "every" takes every ``world_size``-th item, "none" says that it is this rank's own
            already; "auto" splits a Hugging Face stream by its own means, unless that was done.
    Raises:
        ValueError: "auto" for several ranks, and nobody says how to split this iterable.
    """
    choice("split", split, ("auto", "every", "none"))
    if world_size == 1 or split == "none":
        return iterable
    if split == "every":
        return EveryNth(iterable, rank, world_size)
    if type(iterable).__module__.startswith("datasets."):
        if getattr(iterable, "_distributed", None) is not None:
            return iterable
        distributed: Any = importlib.import_module("datasets.distributed")
        return distributed.split_dataset_by_node(iterable, rank=rank, world_size=world_size)
    raise ValueError(
        f"{world_size} ranks read a {type(iterable).__name__}, and nothing says which rank takes "
        'which items: pass split="every" to give each rank every item in turn, or split="none" if '
        "it yields this rank's own items only"
    )


def stream_source(
    source: Any,
    transform: Callable[[Any], Any] | None,
    *,
    num_workers: int,
    method: Literal["thread", "process"],
    multiprocessing_context: str | None,
    on_error: Literal["raise", "skip"],
    dataset_id: str | None = None,
) -> BaseNode[Any]:
    """A node over the items of an iterable or a node, transformed in workers."""
    node: BaseNode[Any] = source
    if not isinstance(source, BaseNode):
        node = StreamView(source, dataset_id=dataset_id)
    if transform is None:
        return node
    work = TransformItem(transform, choice("on_error", on_error, ("raise", "skip")))  # type: ignore[arg-type]
    if not integer("num_workers", num_workers, least=0):
        return Mapper(node, work)
    if method == "thread":
        return WatchedMapper(node, work, num_workers=num_workers)
    workers = WatchedMapper(
        _Packed(node),
        TransformPacked(work),
        num_workers=num_workers,
        method=choice("worker_method", method, ("thread", "process")),  # type: ignore[arg-type]
        multiprocessing_context=multiprocessing_context,
    )
    return _Unpacked(workers)

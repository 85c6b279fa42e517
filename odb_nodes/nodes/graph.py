"""Graphs of torchdata nodes as users build them: what is below a node, and what cannot be exact."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from odb_nodes.arguments import integer
from odb_nodes.errors import StateError
from odb_nodes.nodes.upstream import (
    BaseNode,
    Batcher,
    IterableWrapper,
    ParallelMapper,
    SamplerWrapper,
    sources_of,
)
from odb_nodes.samples.user_code import call_user_code
from odb_nodes.types import Sample

logger = logging.getLogger(__name__)
_MAP_FN = "map_fn"  # of mappers: the user's function
T = TypeVar("T")


class EpochSource(BaseNode[T]):
    """A source that counts its passes over data that may have a name.

    Args:
        dataset_id: Names the data; a state of data by another name is refused.
    """

    def __init__(self, dataset_id: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if dataset_id is not None and not isinstance(dataset_id, str):
            raise ValueError(f"dataset_id must be text or None, got {type(dataset_id).__name__}")
        self.dataset_id = dataset_id
        self._next_epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``reset`` without a state start ``epoch``; a restored state wins."""
        self._next_epoch = integer("epoch", epoch, least=0)

    @property
    def next_epoch(self) -> int:
        """The pass that the next ``reset`` without a state begins."""
        return self._next_epoch

    def check_dataset_id(self, saved: str | None) -> None:
        """Raise ``StateError`` if a state names other data; either may have no name."""
        if saved is not None and self.dataset_id is not None and saved != self.dataset_id:
            raise StateError(f"state is of dataset_id {saved!r}, this run has {self.dataset_id!r}")


def all_sources(node: Any) -> Iterator[Any]:
    """A node and every node below it, the nearest first."""
    level, seen = [node], set()
    while level:
        level = [found for found in level if id(found) not in seen]
        for found in level:
            if id(found) not in seen:
                seen.add(id(found))
                yield found
        level = [source for found in level for source in sources_of(found)]


def epoch_counter(node: Any) -> Any:
    """The one node that counts epochs, of those nearest to ``node``; else None.

    Where several are equally near, as in a mixture, there is no epoch that all of them share.
    """
    level = [] if node is None else [node]
    found: dict[int, Any] = {}
    while level:
        found.update({id(part): part for part in level if hasattr(part, "epoch")})
        level = [below for part in level if id(part) not in found for below in sources_of(part)]
    return next(iter(found.values())) if len(found) == 1 else None


def check_sources(node: Any) -> None:
    """Raise ``ValueError`` for a graph whose state is known not to be exact, with the remedy.

    Functions of torchdata's mappers in it are guarded from now on; see ``GuardedFunction``.
    """
    if not hasattr(node, "reset") or not hasattr(node, "state_dict"):
        raise ValueError(
            f"source must be a torchdata node, got {type(node).__name__}: use "
            "StreamView(iterable), or SampleMapper(SamplerView(len(dataset)), dataset)"
        )
    for found in all_sources(node):
        if isinstance(found, IterableWrapper):
            _check_iterable(found.iterable)
        elif isinstance(found, SamplerWrapper):
            _check_sampler(found.sampler)
        elif isinstance(found, ParallelMapper) and not found.in_order:
            raise ValueError(
                "the state of a ParallelMapper with in_order=False is not exact, for what it "
                "gives after a resume comes in another order: use in_order=True, or "
                "SampleMapper(num_workers=...)"
            )
        elif isinstance(found, Batcher) and found.drop_last:
            logger.warning(
                "a Batcher with drop_last=True leaves out up to %d samples of every pass: use "
                "drop_last=False to train on all of them",
                found.batch_size - 1,
            )
        if hasattr(found, _MAP_FN) and not isinstance(found.map_fn, GuardedFunction):
            found.map_fn = GuardedFunction(found.map_fn)


def not_repeatable(iterable: Any) -> str | None:
    """Why a second look at an iterable may show other items; None if nothing speaks against it."""
    if hasattr(iterable, "__next__"):
        return "an iterator can be read only once: pass what makes it"
    if isinstance(iterable, set | frozenset):
        return "a set has no order that lasts: pass a sorted list"
    batches = getattr(iterable, "batch_sampler", None)
    samplers = (iterable, getattr(iterable, "sampler", None), getattr(batches, "sampler", None))
    if any(isinstance(sampler, _RANDOM) for sampler in samplers):
        return (
            "it draws another order every time: use odb_loader(dataset), or "
            "SampleMapper(SamplerView(len(dataset)), dataset), whose order is known"
        )
    return None


@dataclass(frozen=True, slots=True)
class GuardedFunction:
    """The function of a mapper; whatever it raises is an error of its item, never an end of data.

    Mappers of torchdata take a ``StopIteration`` for the end of the pass, and wait for ever for an
    item whose function raised what is no ``Exception``.

    Attributes:
        function: The user's.
    """

    function: Callable[[Any], Any]

    def __call__(self, item: Any) -> Any:
        where = "while mapping an item"
        if isinstance(item, Sample):
            where = f"while mapping dataset[{item.view.index}]"
        return call_user_code(self.function, item, where=where)


def _check_iterable(iterable: Any) -> None:
    why = not_repeatable(iterable)
    if hasattr(iterable, "state_dict"):
        why = "it does not check that the iterable's own state is exact, nor where the next pass is"
    elif why is None and hasattr(iterable, "set_epoch"):
        why = "it does not tell the iterable its epoch"
    if why is not None:
        raise ValueError(
            f"the state of an IterableWrapper over a {type(iterable).__name__} is not exact, "
            f"{why}; use odb_nodes.StreamView instead of IterableWrapper"
        )


def _check_sampler(sampler: Any) -> None:
    why = not_repeatable(sampler)
    if why is not None and not hasattr(sampler, "state_dict"):
        raise ValueError(
            f"the state of a SamplerWrapper over a {type(sampler).__name__} is not exact, {why}"
        )


_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

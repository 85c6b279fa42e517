"""Graphs of torchdata nodes as users build them: what is below a node, and what cannot be exact."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from odb_nodes.arguments import integer
from odb_nodes.errors import StateError
from odb_nodes.nodes.upstream import BaseNode

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


def sources_of(node: Any) -> list[Any]:
    """The nodes that a node reads, by the attributes that torchdata's nodes keep them in."""
    several = getattr(node, "source_nodes", None)
    if isinstance(several, Mapping):
        return list(several.values())
    for name in ("view", "source", "base_node"):
        if hasattr(getattr(node, name, None), "reset"):
            return [getattr(node, name)]
    return []


def all_sources(node: Any) -> Iterator[Any]:
    """A node and every node below it, the nearest first."""
    level, seen = [node], set()
    while level:
        for found in level:
            if id(found) not in seen:
                seen.add(id(found))
                yield found
        level = [source for found in level for source in sources_of(found)]


def epoch_counter(node: Any) -> Any:
    """The nearest node that counts epochs, if there is exactly one chain of nodes to it; else None.

    A node with several sources has no epoch that all of them share.
    """
    while node is not None and not hasattr(node, "epoch"):
        below = sources_of(node)
        node = below[0] if len(below) == 1 else None
    return node


def check_sources(node: Any) -> None:
    """Raise ``ValueError`` for a graph whose state is known not to be exact, with the remedy."""
    if not hasattr(node, "reset") or not hasattr(node, "state_dict"):
        raise ValueError(
            f"source must be a torchdata node, got {type(node).__name__}: use "
            "StreamView(iterable), or SampleMapper(SamplerView(len(dataset)), dataset)"
        )
    for found in all_sources(node):
        name = type(found).__name__
        if name in _INEXACT:
            raise ValueError(f"the state of a {name} is not exact: {_INEXACT[name]}")


# Of torchdata 0.11, by measurement: stopped and resumed at every place, these repeat or lose items.
_INEXACT = {
    "MultiNodeWeightedSampler": (
        "after a source has ended it is read again on a resume; use one dataset that mixes the "
        "others (torch.utils.data.ConcatDataset under a SampleMapper) for exact coverage"
    ),
}

"""Graphs of torchdata nodes as users build them: what is below a node, and what cannot be exact."""

from collections.abc import Iterator, Mapping
from typing import Any


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

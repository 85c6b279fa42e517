"""Pipelines that tests of states stop, save and resume."""

from typing import Any

from torchdata.nodes import ParallelMapper

from odb_nodes import AlignNode, GroupingNode, SampleMapper, SamplerView, StreamView, odb_loader
from tests.helpers import Tokens, positions, random_lengths, run_loaders

COUNT = 90
DATA = Tokens(random_lengths(COUNT))
WORKERS = [("thread", 0, 0), ("thread", 2, 2), ("process", 2, 1)]  # method, workers, prefetch


def rows() -> list[dict[str, Any]]:
    return [DATA[index] for index in range(COUNT)]


def build(dataset: Any = DATA, **changes: Any) -> Any:
    settings: dict[str, Any] = {"token_budget": 256, "window": 16, "prefetch": 0}
    return odb_loader(dataset, **{**settings, **changes})


def run(loader: Any, steps: int) -> list[Any]:
    iterator = iter(loader)
    return [next(iterator) for _ in range(steps)]


def state_after(steps: int, **changes: Any) -> tuple[list[Any], dict[str, Any]]:
    with build(**changes) as loader:
        head = run(loader, steps)
        return head, loader.state_dict()


def whole_epoch(**changes: Any) -> list[Any]:
    with build(**changes) as loader:
        return list(loader)


def world(size: int, states: list[Any] | None, steps: int | None) -> tuple[list[int], list[Any]]:
    results = run_loaders(size, build, states, steps)
    found = [p for batches, _ in results for p in positions(batches)]
    return found, [state for _, state in results]


def _same(item: Any) -> Any:
    return item


def make_node(kind: str, workers: int) -> Any:
    stream: Any = StreamView(rows())
    if workers:
        stream = ParallelMapper(stream, _same, num_workers=workers)
    if kind.startswith("stream"):
        source = stream
    else:
        source = SampleMapper(SamplerView(COUNT), DATA, num_workers=workers)
    if kind in ("stream", "mapper"):
        return source
    if kind == "view":
        return SamplerView(COUNT)
    groups = GroupingNode(source, 256, window=16)
    return groups if kind.endswith("grouping") else AlignNode(groups)

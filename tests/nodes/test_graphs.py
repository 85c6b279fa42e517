"""Any node may stand between a source and the window: exact at every step, or refused by name."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torchdata.nodes import (
    BaseNode,
    Batcher,
    IterableWrapper,
    Mapper,
    MapStyleWrapper,
    MultiNodeWeightedSampler,
    ParallelMapper,
    Prefetcher,
    SamplerWrapper,
    StopCriteria,
    Unbatcher,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from odb_nodes import (
    AlignNode,
    GroupingNode,
    NodeLoader,
    OdbLoader,
    PadCollate,
    Sample,
    SampleError,
    SampleMapper,
    SamplerView,
    StateError,
    StreamView,
    WorkerDiedError,
    odb_loader,
)
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens, random_lengths, same_batches

COUNT = 29
DATA = Tokens(random_lengths(COUNT, longest=40))
ROWS = [DATA[index] for index in range(COUNT)]


def tokens_of(item: Any) -> Any:
    return item.data["input_ids"] if isinstance(item, Sample) else item["input_ids"]


def same(item: Any) -> Any:
    return item


def cut(item: Any) -> Any:
    """At most 20 tokens of a sample, of whatever kind."""
    if isinstance(item, Sample):
        data = {key: value[:20] for key, value in item.data.items()}
        return item._replace(data=data, length=len(data["input_ids"]))
    return {key: value[:20] for key, value in item.items()}


class Filter(BaseNode[Any]):
    """As torchdata has it after 0.11, under another attribute."""

    def __init__(self, before: BaseNode[Any], keep: Callable[[Any], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before, self.keep = before, keep

    def reset(self, initial_state: Any = None) -> None:
        super().reset(initial_state)
        self.before.reset(None if initial_state is None else initial_state["before"])

    def next(self) -> Any:
        while not self.keep(item := next(self.before)):
            pass
        return item

    def get_state(self) -> dict[str, Any]:
        return {"before": self.before.state_dict()}


class Cycler(BaseNode[Any]):
    """Its source again and again, as torchdata has it after 0.11."""

    def __init__(self, source: BaseNode[Any], max_cycles: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source, self.max_cycles = source, max_cycles
        self.cycles = 0

    def reset(self, initial_state: Any = None) -> None:
        super().reset(initial_state)
        self.cycles = 0 if initial_state is None else initial_state["cycles"]
        self.source.reset(None if initial_state is None else initial_state["source"])

    def next(self) -> Any:
        try:
            return next(self.source)
        except StopIteration:
            self.cycles += 1
            if self.max_cycles is not None and self.cycles >= self.max_cycles:
                raise
        self.source.reset(None)
        return next(self.source)

    def get_state(self) -> dict[str, Any]:
        return {"cycles": self.cycles, "source": self.source.state_dict()}


def mapper(rank: int, size: int, data: Any = DATA, **options: Any) -> BaseNode[Any]:
    return SampleMapper(SamplerView(len(data), rank=rank, world_size=size), data, **options)


def mixture(criteria: str) -> Callable[..., BaseNode[Any]]:
    def make(source: BaseNode[Any], rank: int, size: int) -> BaseNode[Any]:
        other = Tokens([7] * 12)
        return MultiNodeWeightedSampler(
            {"a": source, "b": mapper(rank, size, other), "c": StreamView(ROWS[rank:9:size])},
            {"a": 0.5, "b": 0.3, "c": 0.2},
            criteria,
            rank=rank,
            world_size=size,
        )

    return make


SOURCES: dict[str, Callable[[int, int], BaseNode[Any]]] = {
    "mapper": mapper,
    "mapper with threads": lambda rank, size: mapper(rank, size, num_workers=2),
    "stream": lambda rank, size: StreamView(ROWS[rank::size]),
    "list": lambda rank, size: IterableWrapper(ROWS[rank::size]),
    "map style": lambda rank, size: MapStyleWrapper(DATA, list(range(rank, COUNT, size))),  # type: ignore[arg-type]
    "dataloader": lambda rank, size: StreamView(
        StatefulDataLoader(ROWS[rank::size], batch_size=None)  # type: ignore[arg-type]
    ),
}
BETWEEN: dict[str, Callable[..., BaseNode[Any]]] = {
    "nothing": lambda node, *_: node,
    "mapper": lambda node, *_: Mapper(node, cut),
    "threads": lambda node, *_: ParallelMapper(node, cut, num_workers=2),
    "prebatched": lambda node, *_: ParallelMapper(node, cut, num_workers=2, prebatch=3),
    "filter": lambda node, *_: Filter(node, lambda item: len(tokens_of(item)) % 3 != 0),
    "prefetcher": lambda node, *_: Prefetcher(node, 3),
    "rare snapshots": lambda node, *_: Prefetcher(node, 3, snapshot_frequency=4),
    "batches": lambda node, *_: Unbatcher(Batcher(node, 4, drop_last=False)),
    "shuffled order": lambda node, *_: Unbatcher(
        Mapper(Batcher(node, 5, drop_last=False), lambda batch: batch[::-1])
    ),
    "cycler": lambda node, *_: Cycler(node, 2),
    "all": lambda node, *_: Prefetcher(
        Filter(Unbatcher(Batcher(Mapper(node, same), 4, drop_last=False)), lambda item: True), 2
    ),
    "all datasets": mixture(StopCriteria.ALL_DATASETS_EXHAUSTED),
    "first dataset": mixture(StopCriteria.FIRST_DATASET_EXHAUSTED),
    "cycled datasets": mixture(StopCriteria.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED),
}
# Each source with everything in between would be many: what reads ahead meets every source.
GRAPHS = [("mapper", between) for between in BETWEEN] + [
    (source, between)
    for source in SOURCES
    for between in ("nothing", "all", "rare snapshots", "cycled datasets")
    if source != "mapper"
]


def build(graph: tuple[str, str], rank: int, transport: Any, **align: Any) -> OdbLoader:
    source, between = graph
    size = transport.world_size
    node = BETWEEN[between](SOURCES[source](rank, size), rank, size)
    groups = GroupingNode(node, 96, window=6)
    aligned = AlignNode(groups, transport=transport, timeout_s=20, **align)
    return OdbLoader(aligned, collate=PadCollate(), prefetch=0)


def whole_run(graph: tuple[str, str], size: int, **align: Any) -> list[Any]:
    """Per rank: batches of two passes, and the states at each step of the first."""

    def work(rank: int, transport: Any) -> Any:
        with build(graph, rank, transport, **align) as loader:
            states, first = [loader.state_dict()], []
            for batch in loader:
                first.append(batch)
                states.append(loader.state_dict())
            return first, list(loader), states

    return InProcessWorld(size, timeout_s=120).run(work)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("graph", GRAPHS, ids=" under ".join)
def test_a_graph_resumes_exactly_at_every_step(graph: tuple[str, str], size: int) -> None:
    whole = whole_run(graph, size)
    steps = len(whole[0][0])
    assert steps > 2

    def resume(rank: int, transport: Any, step: int) -> bool:
        first, second, states = whole[rank]
        with build(graph, rank, transport) as loader:
            loader.load_state_dict(states[step])
            rest = list(loader)
            return same_batches(rest, first[step:] if step < steps else second) and (
                step == steps or same_batches(list(loader), second)
            )

    for step in range(steps + 1):
        world = InProcessWorld(size, timeout_s=120)
        assert all(world.run(lambda rank, t, step=step: resume(rank, t, step))), step  # type: ignore[misc]


def test_a_source_that_goes_on_after_its_end_is_told_of_instead_of_read_for_ever() -> None:
    class Forgetful(Cycler):
        def next(self) -> Any:
            if self.cycles == self.max_cycles:  # once more, and it is past the end
                self.cycles = 0
            return super().next()

    BETWEEN["forgetful"] = lambda node, *_: Forgetful(node, 2)
    try:
        states = whole_run(("list", "forgetful"), 1)[0][2]

        def resume(rank: int, transport: Any) -> Any:
            with build(("list", "forgetful"), rank, transport) as loader:
                loader.load_state_dict(states[-2])
                with pytest.raises(StateError, match="a Forgetful, goes on after its end"):
                    list(loader)

        InProcessWorld(1, timeout_s=60).run(resume)
    finally:
        del BETWEEN["forgetful"]


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_whose_sources_cycle_at_different_times_stay_together(size: int) -> None:
    def cycled(rank: int, transport: Any, state: Any = None) -> Any:
        node = Cycler(mapper(rank, size))
        align = AlignNode(GroupingNode(node, 96, window=4), transport=transport, sample_quota=40)
        with OdbLoader(align, collate=PadCollate(), prefetch=0) as loader:
            if state is not None:
                loader.load_state_dict(state)
                return list(loader), list(loader), None
            batches, states = [], []
            for batch in loader:
                batches.append(batch)
                states.append(loader.state_dict())
            return batches, list(loader), states

    whole = InProcessWorld(size, timeout_s=120).run(cycled)
    steps = len(whole[0][0])
    for step in range(1, steps):
        world = InProcessWorld(size, timeout_s=120)
        found = world.run(lambda rank, t, step=step: cycled(rank, t, whole[rank][2][step - 1]))  # type: ignore[misc]
        for (first, second, _), (rest, after, _) in zip(whole, found, strict=True):
            assert same_batches(rest, first[step:])
            assert same_batches(after, second)


# Refused


class OwnState:
    """An iterable with a state."""

    def __iter__(self) -> Any:
        return iter(ROWS)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Epochs:
    """An iterable that is to be told its epoch."""

    def __iter__(self) -> Any:
        return iter(ROWS)

    def set_epoch(self, epoch: int) -> None:
        pass


def shuffled() -> Any:
    return DataLoader(ROWS, batch_size=None, shuffle=True)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "iterator": (lambda: IterableWrapper(iter(ROWS)), "StreamView instead"),
    "generator": (lambda: IterableWrapper(row for row in ROWS), "StreamView instead"),
    "own state": (lambda: IterableWrapper(OwnState()), "StreamView instead"),
    "StatefulDataLoader": (
        lambda: IterableWrapper(StatefulDataLoader(ROWS)),  # type: ignore[arg-type]
        "StreamView instead",
    ),
    "epochs": (lambda: IterableWrapper(Epochs()), "StreamView instead"),
    "set": (lambda: IterableWrapper({1, 2}), "a sorted list"),
    "shuffled DataLoader": (lambda: IterableWrapper(shuffled()), "SamplerView"),
    "random sampler": (
        lambda: SamplerWrapper(RandomSampler(ROWS, generator=torch.Generator())),
        "SamplerView",
    ),
    "random map style": (
        lambda: MapStyleWrapper(DATA, RandomSampler(ROWS)),  # type: ignore[arg-type]
        "SamplerView",
    ),
    "in_order": (
        lambda: ParallelMapper(StreamView(ROWS), same, num_workers=2, in_order=False),
        "in_order=True",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("between", ["nothing", "all", "cycled datasets"])
def test_what_cannot_be_exact_is_refused_with_what_to_use(kind: str, between: str) -> None:
    make, remedy = REFUSED[kind]
    with pytest.raises(ValueError, match="is not exact") as caught:
        GroupingNode(BETWEEN[between](make(), 0, 1), 96)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("iterable", [iter(ROWS), {1}, frozenset({1}), shuffled()], ids=type)
def test_a_stream_view_of_what_cannot_be_read_again_is_refused(iterable: Any) -> None:
    with pytest.raises(ValueError, match="over the same items in the same order"):
        StreamView(iterable)


def test_samplers_with_a_known_order_are_taken() -> None:
    for sampler in (SequentialSampler(ROWS), list(range(COUNT))):
        groups = GroupingNode(MapStyleWrapper(DATA, sampler), 96)  # type: ignore[arg-type]
        assert sum(len(group) for window in groups for group in window) == COUNT


def test_a_batcher_that_leaves_samples_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    GroupingNode(Unbatcher(Batcher(StreamView(ROWS), 4)), 96)
    assert "leaves out up to 3 samples of every pass: use drop_last=False" in caplog.text


# Errors


class PanicError(BaseException):
    """No ``Exception``, as Rust extensions raise it."""


@pytest.mark.parametrize(
    "error", [StopIteration("s"), PanicError("p"), GeneratorExit("g")], ids=repr
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_function_of_a_mapper_raises_is_an_error_of_its_sample(
    error: BaseException, workers: int
) -> None:
    def bad(sample: Sample) -> Sample:
        if sample.view.index == 17:
            raise error
        return sample

    node: Any = ParallelMapper(mapper(0, 1), bad, num_workers=workers)
    with (
        OdbLoader(AlignNode(GroupingNode(node, 96, window=8)), collate=PadCollate()) as loader,
        pytest.raises(SampleError, match=r"dataset\[17\]"),
    ):
        list(loader)


@pytest.mark.parametrize("error", [PanicError("p"), GeneratorExit("g")], ids=type)
def test_a_stream_that_raises_no_exception_is_an_error_too(error: BaseException) -> None:
    class Bad:
        def __iter__(self) -> Any:
            yield from ROWS[:5]
            raise error

    with (
        OdbLoader(AlignNode(GroupingNode(StreamView(Bad()), 96)), collate=PadCollate()) as loader,
        pytest.raises(SampleError, match=type(error).__name__),
    ):
        list(loader)


def test_threads_of_every_source_of_a_mixture_end_with_the_loader() -> None:
    node = mixture(StopCriteria.ALL_DATASETS_EXHAUSTED)(Prefetcher(mapper(0, 1), 2), 0, 1)
    loader = OdbLoader(AlignNode(GroupingNode(node, 96, window=4)), collate=PadCollate())
    next(iter(loader))
    threads = [node.source_nodes["a"]._it._thread]  # type: ignore[attr-defined]
    loader.shutdown()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


# Without an AlignNode


@pytest.mark.slow
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("between", ["nothing", "all", "cycled datasets"])
def test_groups_alone_are_exact_in_a_node_loader(between: str, restart: bool) -> None:
    def make() -> NodeLoader[Any]:
        node = BETWEEN[between](mapper(0, 1), 0, 1)
        return NodeLoader(GroupingNode(node, 96, window=5), restart)

    def shown(windows: Any) -> list[Any]:
        return [[[sample.view for sample in group] for group in groups] for groups in windows]

    loader = make()
    states, first = [loader.state_dict()], []
    for groups in loader:
        first.append(groups)
        states.append(loader.state_dict())
    second, third = list(loader), list(loader)
    assert shown(second) != shown(first)
    for used in (False, True):
        for step, state in enumerate(states[:-1]):
            loader = make()
            if used:
                next(iter(loader))
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert shown(loader) == shown(first[step:])
            assert shown(loader) == shown(second)
            assert shown(loader) == shown(third)
    loader = make()
    list(loader)
    end = loader.state_dict()
    loader.load_state_dict(end)
    assert shown(loader) == (shown(second) if restart else [])
    assert shown(loader) == (shown(third) if restart else shown(second))


# Transforms of streams in worker processes


def die(row: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def not_to_be_sent(row: Any) -> Any:
    return {**row, "thing": lambda: 0}


def exits(row: Any) -> Any:
    sys.exit(3)


@pytest.mark.parametrize(
    ("transform", "rows", "error"),
    [
        (die, ROWS, WorkerDiedError),
        (not_to_be_sent, ROWS, SampleError),
        (exits, ROWS, SampleError),
        (same, [{"input_ids": [1], "thing": lambda: 0}], SampleError),
    ],
    ids=["killed", "result", "exit", "item"],
)
def test_what_goes_wrong_in_a_worker_of_a_stream_is_an_error_and_never_hangs(
    transform: Any, rows: Any, error: type[Exception]
) -> None:
    workers: Any = {"worker_method": "process", "multiprocessing_context": "fork"}
    with (
        odb_loader(Stream(rows), transform, token_budget=96, num_workers=1, **workers) as loader,
        pytest.raises(error),
    ):
        list(loader)


class Stream:
    """An iterable, and no map-style dataset."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)

"""What this package relies on in torchdata; a newer torchdata that changes it fails here."""

import ast
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.nodes import IterableWrapper
from torchdata.nodes.map import _ParallelMapperIter, _SingleThreadedMapper

from odb_nodes.errors import WorkerDiedError
from odb_nodes.nodes import upstream
from odb_nodes.nodes.upstream import BaseNode, Loader, Mapper, ParallelMapper, Prefetcher

PACKAGE = Path(__file__).parents[2] / "odb_nodes"


def same(item: Any) -> Any:
    return item


def numbers(count: int = 20) -> Any:
    return IterableWrapper(range(count))


def started(node: Any) -> Any:
    """A node that has begun, and its state."""
    assert next(node) == 0
    return node


@pytest.fixture
def all_threads_end() -> Any:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive(), thread


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_only_upstream_imports_torchdata(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if path.name != "upstream.py":
            assert not any(name.split(".")[0] == "torchdata" for name in names), path


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (BaseNode.reset, ["self", "initial_state"]),
        (BaseNode.next, ["self"]),
        (BaseNode.get_state, ["self"]),
        (BaseNode.state_dict, ["self"]),
        (Mapper, ["source", "map_fn"]),
        (Prefetcher.__init__, ["self", "source", "prefetch_factor", "snapshot_frequency"]),
        (
            upstream.PinMemory.__init__,
            ["self", "source", "pin_memory_device", "snapshot_frequency"],
        ),
        (Loader.__init__, ["self", "root", "restart_on_stop_iteration"]),
        (Loader.state_dict, ["self"]),
        (Loader.load_state_dict, ["self", "state_dict"]),
        (_SingleThreadedMapper._shutdown, ["self"]),
        (_ParallelMapperIter._shutdown, ["self"]),
        (_ParallelMapperIter.__del__, ["self"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_what_is_called_or_overridden_takes_what_it_took(function: Any, parameters: Any) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_a_node_resets_itself_before_its_first_item_and_state() -> None:
    class Node(BaseNode[int]):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.resets: list[Any] = []

        def reset(self, initial_state: Any = None) -> None:
            super().reset(initial_state)
            self.resets.append(initial_state)

        def next(self) -> int:
            raise StopIteration

        def get_state(self) -> dict[str, Any]:
            return {"a": 1}

    node = Node()
    assert node.state_dict() == {"a": 1}
    assert list(node) == []
    assert node.resets == [None]


@pytest.mark.usefixtures("all_threads_end")
def test_a_prefetcher_reads_in_a_thread_that_can_be_found_told_and_joined() -> None:
    node: Any = Prefetcher(Mapper(numbers(), same), prefetch_factor=2)
    (reader,) = upstream.readers(started(node), node.source.source)
    assert reader is node._it
    assert reader._thread.is_alive()
    upstream.stop_reading([reader])
    upstream.join_threads([reader])
    assert not reader._thread.is_alive()
    assert list(node) == []  # told to stop, it gives no more


@pytest.mark.usefixtures("all_threads_end")
def test_a_mapper_in_between_is_no_reader() -> None:
    source = numbers()
    assert upstream.readers(started(Mapper(source, same)), source) == []


@pytest.mark.parametrize("method", ["thread", "process"])
@pytest.mark.usefixtures("all_threads_end")
def test_the_workers_of_a_parallel_mapper_are_found_and_ended(method: Any) -> None:
    node = Prefetcher(
        ParallelMapper(
            numbers(), same, num_workers=2, method=method, multiprocessing_context="fork"
        ),
        prefetch_factor=2,
    )
    workers = started(node).source._it._it._workers
    assert len(workers) == 2
    upstream.stop(node)
    for worker in workers:
        worker.join(5)
        assert not worker.is_alive()


@pytest.mark.usefixtures("all_threads_end")
def test_abandoned_nodes_end_their_threads_and_join_none_of_them() -> None:
    node = started(Prefetcher(ParallelMapper(numbers(), same, num_workers=2), prefetch_factor=2))
    inner = node.source._it._it
    upstream.abandon(node)
    assert inner._workers == []
    for name in ("_read_thread", "_sort_thread"):
        assert not hasattr(inner, name)
    assert not hasattr(node._it, "_thread")
    assert node._it._stop_event.is_set()
    assert inner._stop.is_set()
    assert inner._mp_stop.is_set()


def pinned(source: Any) -> Any:
    if not torch.cuda.is_available():
        pytest.skip("pinning needs a GPU")
    return upstream.PinMemory(source)


@pytest.mark.usefixtures("all_threads_end")
@pytest.mark.parametrize(
    "around",
    [
        lambda source: Mapper(source, same),
        lambda source: Prefetcher(source, prefetch_factor=2),
        lambda source: Prefetcher(Mapper(source, same), prefetch_factor=3),
        lambda source: Mapper(Prefetcher(source, prefetch_factor=1), same),
        pinned,
    ],
    ids=["mapper", "prefetcher", "prefetched mapper", "mapped prefetcher", "pinned"],
)
def test_a_state_can_be_put_into_the_nodes_around_its_own(around: Any) -> None:
    source = numbers()
    for _ in range(7):
        next(source)
    state = source.state_dict()
    source = numbers()
    node = around(source)
    node.reset(upstream.state_around(node, source, state))
    assert list(node) == list(range(7, 20))
    upstream.stop(node)


def die_at_five(item: int) -> int:
    if item == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.usefixtures("all_threads_end")
def test_a_watched_mapper_notices_a_dead_worker_process(prefetch: int) -> None:
    workers: dict[str, Any] = {"method": "process", "multiprocessing_context": "fork"}
    mapper = upstream.WatchedMapper(numbers(), die_at_five, num_workers=1, **workers)
    node: Any = Prefetcher(mapper, prefetch_factor=prefetch) if prefetch else mapper
    with pytest.raises(WorkerDiedError, match="was killed by signal 9"):
        list(node)
    assert isinstance(mapper.died, WorkerDiedError)
    upstream.stop(node)


@pytest.mark.slow
def test_a_forked_child_drops_a_mapper_with_workers_in_silence() -> None:
    script = """
import gc, os
from torchdata.nodes import IterableWrapper
from odb_nodes.nodes.upstream import ParallelMapper, stop
node = ParallelMapper(
    IterableWrapper(range(9)), abs, num_workers=1, method="process", multiprocessing_context="fork"
)
next(node)
child = os.fork()
if not child:
    node = None
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
stop(node)
node = None
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert "Exception ignored" not in done.stderr


def test_end_of_data_stays_the_end_and_reset_begins_again() -> None:
    node = Prefetcher(numbers(3), prefetch_factor=2)
    assert [list(node), list(node)] == [[0, 1, 2], []]
    node.reset()
    assert list(node) == [0, 1, 2]

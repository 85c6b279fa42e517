"""Worker threads and processes: start methods, deaths, and what is left behind."""

import gc
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import pytest

from odb_nodes import WorkerDiedError, odb_loader
from tests.helpers import Tokens, children_of, positions, random_lengths, same_batches

BAD = 70  # the sample on which a worker dies


def build(count: int = 150, transform: Any = None, **changes: Any) -> Any:
    settings: dict[str, Any] = {"token_budget": 256, "window": 16, "prefetch": 2, **changes}
    return odb_loader(Tokens(random_lengths(count)), transform, **settings)


def kill_worker(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def exit_worker(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] == BAD:
        os._exit(0)
    return row


def wait_until_gone(before: set[threading.Thread], children: set[int]) -> None:
    """Fails unless the threads and processes that were not there before end within 5 s."""
    deadline = time.monotonic() + 5
    while True:
        threads = [thread.name for thread in threading.enumerate() if thread not in before]
        processes = set(children_of(os.getpid())) - children
        if not threads and not processes:
            return
        assert time.monotonic() < deadline, f"left behind: {threads} {processes}"
        time.sleep(0.02)


@pytest.fixture
def nothing_left() -> Any:
    before, children = set(threading.enumerate()), set(children_of(os.getpid()))
    yield
    wait_until_gone(before, children)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("transform", [kill_worker, exit_worker])
@pytest.mark.usefixtures("nothing_left")
def test_a_dead_worker_process_is_an_error_not_a_hang(transform: Any, prefetch: int) -> None:
    workers: Any = {"num_workers": 2, "worker_method": "process", "multiprocessing_context": "fork"}
    with (
        build(transform=transform, prefetch=prefetch, on_error="skip", **workers) as loader,
        pytest.raises(WorkerDiedError, match=r"worker process \d+.*(signal 9|exit code 0)") as died,
    ):
        list(loader)
    assert "Traceback" not in str(died.value)


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_process_that_dies_while_a_state_is_loaded_is_an_error_too() -> None:
    with build(prefetch=0, window=100) as loader:
        next(iter(loader))
        state = loader.state_dict()
    workers: Any = {"num_workers": 1, "worker_method": "process", "multiprocessing_context": "fork"}
    with build(transform=kill_worker, window=100, **workers) as loader:
        loader.load_state_dict(state)
        with pytest.raises(WorkerDiedError):
            list(loader)


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_every_start_method_gives_the_same_batches(context: str) -> None:
    with build() as loader:
        expected = list(loader), list(loader)
    num_workers = 2 if context == "fork" else 1  # the others import torch in every worker
    workers: Any = {"worker_method": "process", "multiprocessing_context": context}
    with build(num_workers=num_workers, **workers) as loader:
        assert same_batches(list(loader), expected[0])
        if context == "fork":
            assert same_batches(list(loader), expected[1])
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.usefixtures("nothing_left")
def test_thread_workers_give_the_same_batches(num_workers: int) -> None:
    with build(prefetch=0) as loader:
        expected = list(loader)
    with build(num_workers=num_workers) as loader:
        assert same_batches(list(loader), expected)


@pytest.mark.usefixtures("nothing_left")
def test_no_workers_means_no_worker_processes() -> None:
    with build(num_workers=0) as loader:
        next(iter(loader))
        assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("nothing_left")
def test_loaders_that_are_alive_at_once_do_not_disturb_each_other() -> None:
    with build() as loader:
        expected = list(loader)
    workers: Any = {"num_workers": 1, "worker_method": "process", "multiprocessing_context": "fork"}
    with (
        build(num_workers=2) as threads,
        build(num_workers=2) as twin,
        build(**workers) as forked,
    ):
        mixed = list(zip(threads, twin, forked, strict=True))
    for column in zip(*mixed, strict=True):
        assert same_batches(column, expected)


@pytest.mark.parametrize("method", ["thread", "process"])
@pytest.mark.usefixtures("nothing_left")
def test_breaking_off_and_iterating_again_leaves_nothing_behind(method: str) -> None:
    workers: Any = {"num_workers": 2, "worker_method": method, "multiprocessing_context": "fork"}
    with build(**workers) as loader:
        before, most = len(children_of(os.getpid())), 0
        for epoch in range(8):
            for step, batch in enumerate(loader):
                assert batch.info.epoch == epoch
                if step == epoch:
                    break
            most = max(most, len(children_of(os.getpid())))
        assert most <= before + (2 if method == "process" else 0)
        assert sorted(positions(list(loader))) == list(range(150))


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_that_is_only_dropped_ends_its_threads() -> None:
    loader = build(num_workers=2)
    next(iter(loader))
    del loader
    gc.collect()  # a loader and its iterator know each other: a cycle, which waits for a collection

"""Worker threads and processes: start methods, deaths, and what is left behind."""

import ast
import contextlib
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from odb_nodes import SampleMapper, SamplerView, WorkerDiedError, odb_loader
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
        gc.collect()  # one of these threads may have held what an earlier collection looked for
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
    how = r"worker process \d+.*(signal 9|exit code 0) at dataset\[70\]"
    workers: Any = {"num_workers": 2, "worker_method": "process", "multiprocessing_context": "fork"}
    with (
        build(transform=transform, prefetch=prefetch, on_error="skip", **workers) as loader,
        pytest.raises(WorkerDiedError, match=how) as died,
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


@pytest.mark.slow
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
    forks: Any = {
        "num_workers": 1,
        "worker_method": "process",
        "multiprocessing_context": "fork",
    }
    with (
        build(num_workers=2) as threads,
        build(num_workers=2) as twin,
        build(**forks) as forked,
    ):
        mixed = list(zip(threads, twin, forked, strict=True))
    for column in zip(*mixed, strict=True):
        assert same_batches(column, expected)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("method", ["thread", "process"])
def test_a_loader_that_is_only_dropped_ends_its_workers(method: str, num_workers: int) -> None:
    before, children = set(threading.enumerate()), set(children_of(os.getpid()))
    loader = build(num_workers=num_workers, worker_method=method, multiprocessing_context="fork")
    next(iter(loader))
    del loader
    gc.collect()
    multiprocessing.active_children()  # takes leave of those that have ended
    wait_until_gone(before, children)


# Persistent workers

PROCESSES: dict[str, Any] = {
    "num_workers": 2,
    "worker_method": "process",
    "multiprocessing_context": "fork",
}


def pid_as_label(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "labels": [os.getpid()] * len(row["input_ids"])}


def pids(batches: Any) -> set[int]:
    return {int(x) for batch in batches for x in batch.tensors["labels"].unique() if x != -100}


@pytest.mark.usefixtures("nothing_left")
def test_persistent_workers_stay_over_epochs_breaks_and_resumes() -> None:
    with build(transform=pid_as_label, persistent_workers=True, **PROCESSES) as loader:
        epochs = [list(loader), list(loader)]
        for batch in loader:
            if batch.info.step == 2:
                break
        state = loader.state_dict()
        epochs.append(list(loader))
        loader.load_state_dict(state)
        epochs.append(list(loader))
        assert len(set.union(*map(pids, epochs))) == 2
    assert [sorted(positions(epoch)) for epoch in epochs[:3]] == [list(range(150))] * 3
    assert epochs[3][0].info.step == 3
    with build(transform=pid_as_label, **PROCESSES) as loader:
        assert not pids(list(loader)) & pids(list(loader))


def workers_now() -> list[Any]:
    return [c for c in multiprocessing.active_children() if c.name.startswith("odb-worker")]


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return row


@pytest.mark.usefixtures("nothing_left")
def test_no_straggler_of_a_pass_that_was_left_shows_up_in_the_next_one() -> None:
    with build() as loader:
        expected = [list(loader) for _ in range(6)]
    with build(transform=slow, persistent_workers=True, **PROCESSES) as loader:
        for epoch in range(0, 6, 2):
            for batch in loader:
                if batch.info.step == epoch:
                    break
            assert same_batches(list(loader), expected[epoch + 1])


@pytest.mark.usefixtures("nothing_left")
def test_a_persistent_worker_that_died_between_epochs_is_replaced_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with build(persistent_workers=True, **PROCESSES) as loader:
        list(loader)
        victim = workers_now()[0].pid
        os.kill(victim, signal.SIGKILL)
        while victim in [worker.pid for worker in workers_now()]:
            time.sleep(0.01)
        assert sorted(positions(list(loader))) == list(range(150))
    assert f"worker process {victim} has ended" in caplog.text


@pytest.mark.usefixtures("nothing_left")
def test_after_a_worker_died_the_next_epoch_runs_on_new_ones() -> None:
    with build(transform=kill_worker, persistent_workers=True, **PROCESSES) as loader:
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match=r"at dataset\[70\]"):
                list(loader)


def test_a_persistent_pool_that_is_only_dropped_ends_its_processes() -> None:
    view, rows = SamplerView(40), Tokens([3] * 40)
    mapper = SampleMapper(view, rows, num_workers=2, method="process", persistent_workers=True)
    list(mapper)
    assert len(workers_now()) == 2
    del mapper
    gc.collect()
    assert not workers_now()


# Samples that block

BLOCKED = 9


def block(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] == BLOCKED:
        time.sleep(0.7)
    return row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "who"),
    [
        ({}, "the calling thread"),
        ({"read_ahead": 4}, "worker thread 0"),
        ({"num_workers": 2}, r"worker thread \d"),
        ({"num_workers": 2, "method": "process"}, r"worker process \d+"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_transform_that_blocks_is_named_with_index_worker_and_seconds(
    workers: dict[str, Any], who: str, caplog: pytest.LogCaptureFixture
) -> None:
    view = SamplerView(40, shuffle=False)
    mapper = SampleMapper(view, Tokens([3] * 40), block, timeout_s=0.2, **workers)
    assert len(list(mapper)) == 40
    mapper.shutdown()
    told = [record.message for record in caplog.records if "blocks" in record.message]
    assert 1 <= len(told) <= 2, told  # at 0.2 and 0.4 s
    pattern = rf"dataset\[{BLOCKED}\] has been in work for 0\.[2-9] s in {who}: "
    assert all(re.match(pattern, line) for line in told), told


def test_a_loader_passes_its_timeout_on(caplog: pytest.LogCaptureFixture) -> None:
    with build(count=40, transform=block, timeout_s=0.2) as loader:
        list(loader)
    assert f"dataset[{BLOCKED}] has been in work" in caplog.text


# The end of a process

SCRIPT = """
import os, sys, time
import torch
from odb_nodes import *
from tests.helpers import Tokens

def work(row):
    torch.rand(200, 200) @ torch.rand(200, 200)
    return row

def open_loader(**changes):
    loader = odb_loader(Tokens([5] * 3000), work, token_budget=50, window=32, **changes)
    iterator = iter(loader)
    next(iterator)
    return loader, iterator

processes = {"num_workers": 2, "worker_method": "process", "multiprocessing_context": "fork"}
"""
ENDINGS = {
    "threads": ("x = open_loader(num_workers=2)", 0),
    "no prefetch": ("x = open_loader(num_workers=2, prefetch=0)", 0),
    "an exception": ("x = open_loader(num_workers=2); raise SystemExit(3)", 3),
    "two at once": ("x = open_loader(); y = open_loader(persistent_workers=True, **processes)", 0),
    "a mapper": (
        "x = SampleMapper(SamplerView(90), Tokens([5] * 90), work, num_workers=3); next(x)",
        0,
    ),
    "in a function": ("exec('def f(): x = open_loader(num_workers=1)\\nf()')", 0),
}


def start(script: str) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT + script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FORKS = """
codes = {}
for name, (ending, _) in ENDINGS.items():
    child = os.fork()
    if not child:
        exec(ending)
        break
    codes[name] = os.waitpid(child, 0)[1]
else:
    print(codes)
"""


@pytest.mark.slow
def test_the_interpreter_exits_cleanly_whatever_was_left_open() -> None:
    process = start(f"ENDINGS = {ENDINGS!r}\n{FORKS}")  # one import of torch for all
    said, complaints = process.communicate(timeout=200)
    assert process.returncode == 0, complaints
    codes = ast.literal_eval(said.splitlines()[-1])
    assert {name: os.waitstatus_to_exitcode(code) for name, code in codes.items()} == {
        name: code for name, (_, code) in ENDINGS.items()
    }, complaints
    assert "terminate" not in complaints
    assert "Exception ignored" not in complaints


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_do_not_outlive_a_parent_that_is_killed(how: signal.Signals) -> None:
    script = """
x = open_loader(persistent_workers=True, **processes)
import multiprocessing
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
time.sleep(60)
"""
    process = start(script)
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    process.send_signal(how)
    process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(worker, 0)
                assert time.monotonic() < deadline, f"worker {worker} is still there"
                time.sleep(0.05)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"persistent_workers": True}, "needs worker processes"),
        ({"persistent_workers": True, "num_workers": 2}, "needs worker processes"),
        ({"persistent_workers": 1, **PROCESSES}, "persistent_workers must be True or False, got 1"),
        ({"timeout_s": 0}, "timeout_s must be"),
        ({"multiprocessing_context": "thread"}, "multiprocessing_context must be"),
    ],
)
def test_settings_of_workers_that_cannot_be_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(**changes)


def test_what_spawned_workers_cannot_be_given_is_refused_with_what_to_do() -> None:
    spawned: Any = {
        "worker_method": "process",
        "multiprocessing_context": "spawn",
    }
    with (
        build(transform=lambda row: row, num_workers=1, **spawned) as loader,
        pytest.raises(Exception, match=r"pickle|local") as raised,
    ):
        list(loader)
    assert "top of a module" in " ".join(raised.value.__notes__)

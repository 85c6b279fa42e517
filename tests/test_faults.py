"""Faults at every place where user code is called: what each rank sees, as docs/faults.md tells."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odb_nodes import Limit, PadCollate, PeerFailedError, TokenBudget, odb_loader
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
COUNT, BAD, TIMEOUT_S = 16, 6, 2.0
HEAD = """# Faults

What each of two ranks sees when something goes wrong on one of them; written by
`ODB_WRITE_FAULTS=1 pytest tests/test_faults.py`, which also checks it. No rank waits longer than
`timeout_s` for another. A stream is read by all ranks (`split="every"`), so all see its errors; an
iterator that raises `StopIteration` has ended, by Python's own rule. Numbers are samples delivered.
Files are those of `load`, which all ranks call.

| place | fault | the rank with the fault | the other rank |
| --- | --- | --- | --- |
"""


class PanicError(BaseException):
    """No ``Exception``, as Rust extensions raise it."""


def throws(error: type[BaseException]) -> Callable[[], Any]:
    def fault() -> Any:
        raise error("fault")

    return fault


def blocks() -> Any:
    time.sleep(3 * TIMEOUT_S)
    return {"input_ids": [BAD] * 4}


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, Callable[[], Any]] = {
    "raises": throws(ValueError),
    "raises what is no Exception": throws(PanicError),
    "raises StopIteration": throws(StopIteration),
    "blocks": blocks,
    "gives a number": lambda: 3,
    "gives nothing": lambda: None,
    "gives an empty dict": dict,
}
PLACES = ("dataset", "transform", "length", "cost", "collate", "stream", "stream transform")
IN_WORKERS: dict[str, Callable[[], Any]] = {
    "raises": throws(ValueError),
    "raises SystemExit": lambda: sys.exit(3),
    "ends at once": lambda: os._exit(3),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
OF_PEERS = ("leaves in mid-epoch", "is gone in mid-epoch", "iterates once less")
OF_FILES: dict[str, Callable[[Path], Any]] = {
    "is missing": lambda path: path.unlink(),
    "is cut off": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "is empty": lambda path: path.write_bytes(b""),
    "is of something else": lambda path: path.write_bytes(b"no state of a loader, but a text"),
    "is a folder": become_a_folder,
}
# Where blocking is shown: ranks in one process map a dataset one sample at a time, all of them.
SLOW = ("collate", "stream transform")
CASES = [(place, name) for place in PLACES for name in FAULTS if name != "blocks" or place in SLOW]
CASES += [("worker process", name) for name in IN_WORKERS]
CASES += [("a rank", name) for name in OF_PEERS] + [("file", name) for name in OF_FILES]
WAITS = ("blocks", *OF_PEERS)  # for a rank that does not come
OPTIONS: dict[str, Any] = {
    "token_budget": 8,
    "window": 4,
    "shuffle": False,
    "split": "every",
    "timeout_s": TIMEOUT_S,
}


class Rows(Tokens):
    """Rows with a fault in one of them."""

    def __init__(self, fault: Callable[[], Any] | None) -> None:
        super().__init__([4] * COUNT)
        self.fault = fault

    def __getitem__(self, index: int) -> Any:
        return self.fault() if self.fault and index == BAD else super().__getitem__(index)


class Items:
    """The same as a stream."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return map(self.rows.__getitem__, range(COUNT))


def settings_of(place: str, fault: Callable[[], Any]) -> dict[str, Any]:
    """What to build a loader from, with a fault in one place."""

    def on_row(otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda row: fault() if row["input_ids"][0] == BAD else otherwise(row)

    def collate(samples: list[Any]) -> Any:
        bad = any(sample["input_ids"][0] == BAD for sample in samples)
        return fault() if bad else PadCollate()(samples)

    in_data = fault if place in ("dataset", "stream", "worker process") else None
    rows = Rows(in_data)
    found: dict[str, Any] = {"dataset": Items(rows) if place.startswith("stream") else rows}
    if place.endswith("transform"):
        found["transform"] = on_row(lambda row: row)
    if place == "length":
        found["length"] = on_row(lambda row: len(row["input_ids"]))
    if place == "cost":
        limit = Limit(cost=on_row(lambda row: 1), total=100)
        found["token_budget"] = TokenBudget(8, extra={"patches": limit})
    if place == "collate":
        found["collate"] = collate
    return found


def told_by(iterate: Callable[[], int]) -> str:
    """What a rank comes to: the number of its samples, or its error."""
    try:
        return f"{iterate()} samples"
    except Exception as error:
        peer = isinstance(error, PeerFailedError)  # or a subclass of it
        return f"`{PeerFailedError.__name__ if peer else type(error).__name__}`"


def samples_of(loader: Any) -> int:
    return sum(batch.info.num_samples for batch in loader)


def with_user_code(place: str, fault: Callable[[], Any]) -> list[str]:
    """By rank, what iterating to the end comes to; the fault is on the rank that reads ``BAD``."""
    options = OPTIONS | settings_of(place, fault)
    if place == "worker process":
        options |= {"num_workers": 1, "worker_method": "process"}

    def work(rank: int, transport: Any) -> str:
        with odb_loader(transport=transport, **options) as loader:
            return told_by(lambda: samples_of(loader))

    world = InProcessWorld(2)
    if fault is blocks:
        world.meeting = InProcessWorld(2, timeout_s=TIMEOUT_S).meeting
    return world.run(work)


def with_peer(name: str) -> list[str]:
    """By rank; rank 0 is the one that is not where it should be."""
    over = threading.Event()

    def work(rank: int, transport: Any) -> str:
        with odb_loader(Rows(None), transport=transport, **OPTIONS) as loader:

            def iterate() -> int:
                done = 0
                for batch in loader:
                    done += batch.info.num_samples
                    if rank == 0 and "mid-epoch" in name:
                        if name.startswith("is gone"):
                            over.wait(20)
                        return done
                return done if rank == 0 else done + samples_of(loader)

            told = told_by(iterate)
            if rank == 1:
                over.set()
            elif name == "iterates once less":
                over.wait(20)
            return told

    world = InProcessWorld(2)
    world.meeting = InProcessWorld(2, timeout_s=TIMEOUT_S).meeting
    return world.run(work)


def with_file(name: str, folder: Path) -> list[str]:
    """By rank; both load the same file, which rank 0 reads."""
    path, both = folder / "state", threading.Barrier(2)

    def work(rank: int, transport: Any) -> str:
        with odb_loader(Rows(None), transport=transport, **OPTIONS) as loader:
            next(iter(loader))
            loader.save(path)
            both.wait(20)  # no rank damages it before both have saved
            if rank == 0:
                OF_FILES[name](path)
            both.wait(20)

            def iterate() -> int:
                loader.load(path)
                return samples_of(loader)

            return told_by(iterate)

    return InProcessWorld(2).run(work)


def seen_by_ranks(place: str, name: str, folder: Path) -> list[str]:
    if place == "a rank":
        return with_peer(name)
    if place == "file":
        return with_file(name, folder)
    return with_user_code(place, (IN_WORKERS if place == "worker process" else FAULTS)[name])


def row_of(place: str, name: str, folder: Path) -> str:
    here, other = seen_by_ranks(place, name, folder)
    return f"| {place} | {name} | {here} | {other} |\n"


@pytest.mark.skipif("ODB_WRITE_FAULTS" not in os.environ, reason="writes the page")
def test_write_the_page(tmp_path: Path) -> None:
    rows = []
    for i, case in enumerate(CASES):
        (tmp_path / str(i)).mkdir()
        rows.append(row_of(*case, tmp_path / str(i)))
    PAGE.write_text(HEAD + "".join(rows))


@pytest.mark.parametrize(
    ("place", "name"),
    [pytest.param(*case, marks=pytest.mark.slow if case[1] in WAITS else ()) for case in CASES],
)
def test_each_rank_sees_what_the_page_says(place: str, name: str, tmp_path: Path) -> None:
    before = threading.active_count()
    assert row_of(place, name, tmp_path) in PAGE.read_text()
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before, threading.enumerate()


def test_the_page_has_these_rows_and_no_others() -> None:
    lines = PAGE.read_text().removeprefix(HEAD).splitlines()
    assert [tuple(line.split(" | ")[:2]) for line in lines] == [
        (f"| {place}", name) for place, name in CASES
    ]

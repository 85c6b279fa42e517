"""Faults at every place where user code is called: what each rank sees, as docs/faults.md tells."""

import os
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
# Where blocking is shown: ranks in one process map a dataset one sample at a time, all of them.
SLOW = ("collate", "stream transform")
CASES = [(place, name) for place in PLACES for name in FAULTS if name != "blocks" or place in SLOW]


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

    in_data = fault if place in ("dataset", "stream") else None
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


def seen_by_ranks(place: str, fault: Callable[[], Any]) -> list[str]:
    """By rank, what iterating to the end comes to; the fault is on the rank that reads ``BAD``."""

    def work(rank: int, transport: Any) -> str:
        options: dict[str, Any] = {
            "token_budget": 8,
            "window": 4,
            "shuffle": False,
            "split": "every",
        }
        options |= settings_of(place, fault)
        with odb_loader(transport=transport, timeout_s=TIMEOUT_S, **options) as loader:
            try:
                batches = list(loader)
                told = f"{sum(batch.info.num_samples for batch in batches)} samples"
            except Exception as error:
                peer = isinstance(error, PeerFailedError)
                told = f"`{PeerFailedError.__name__ if peer else type(error).__name__}`"
        return told

    world = InProcessWorld(2)
    if fault is blocks:
        world.meeting = InProcessWorld(2, timeout_s=TIMEOUT_S).meeting
    return world.run(work)


def row_of(place: str, name: str) -> str:
    here, other = seen_by_ranks(place, FAULTS[name])
    return f"| {place} | {name} | {here} | {other} |\n"


@pytest.mark.skipif("ODB_WRITE_FAULTS" not in os.environ, reason="writes the page")
def test_write_the_page() -> None:
    PAGE.write_text(HEAD + "".join(row_of(*case) for case in CASES))


@pytest.mark.parametrize(("place", "name"), CASES)
def test_each_rank_sees_what_the_page_says(place: str, name: str) -> None:
    before = threading.active_count()
    assert row_of(place, name) in PAGE.read_text()
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before, threading.enumerate()


def test_the_page_has_these_rows_and_no_others() -> None:
    lines = PAGE.read_text().removeprefix(HEAD).splitlines()
    assert [tuple(line.split(" | ")[:2]) for line in lines] == [
        (f"| {place}", name) for place, name in CASES
    ]

"""Whatever the user's code raises reaches the caller of ``next`` with its index."""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from odb_nodes import SampleError, SampleMapper, SamplerView, odb_loader
from tests.helpers import Tokens, positions

COUNT, BAD = 60, 23
WORKERS: dict[str, dict[str, Any]] = {
    "inline": {},
    "background": {"read_ahead": 4},
    "threads": {"num_workers": 2},
    "threads ahead": {"num_workers": 2, "read_ahead": 16},
    "processes": {"num_workers": 2, "method": "process", "multiprocessing_context": "fork"},
}
STAGES = ("dataset", "transform", "length")


class PanicException(BaseException):
    """As Rust extensions raise it: no ``Exception``."""


@dataclass(frozen=True)
class FrozenError(Exception):
    """Lets no note be added."""

    code: int


class ForgetfulError(Exception):
    """Loses its notes on the way through a pipe."""

    def __reduce__(self) -> Any:
        return ForgetfulError, self.args


class UnreadableError(Exception):
    """Cannot be read at all."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Unpicklable:
    def __reduce__(self) -> Any:
        raise PanicException("not to be sent")


def explode() -> None:
    raise PanicException("not to be read")


class Unreadable:
    def __reduce__(self) -> Any:
        return explode, ()


KINDS: dict[str, BaseException] = {
    "KeyboardInterrupt": KeyboardInterrupt("k"),
    "SystemExit": SystemExit(3),
    "GeneratorExit": GeneratorExit("g"),
    "CancelledError": asyncio.CancelledError("c"),
    "PanicException": PanicException("p"),
    "StopIteration": StopIteration("s"),
    "ValueError": ValueError("v"),
    "FrozenError": FrozenError(3),
    "ForgetfulError": ForgetfulError("f"),
    "UnreadableError": UnreadableError("u"),
}
TOLD = {"SystemExit": r"sys\.exit\(3\)"}


class Bad:
    """A dataset, and the transform and length for it, that raise at one index in one stage."""

    def __init__(self, kind: str, stage: str, count: int = COUNT) -> None:
        self.kind, self.stage = kind, stage
        self.rows = Tokens([5] * count)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self._maybe("dataset", self.rows[index])

    def transform(self, row: Any) -> Any:
        return self._maybe("transform", row)

    def length(self, row: Any) -> int:
        return len(self._maybe("length", row)["input_ids"])

    def _maybe(self, stage: str, row: Any) -> Any:
        if stage == self.stage and row["input_ids"][0] == BAD:
            raise KINDS[self.kind]
        return row


def raised_by(work: Any) -> BaseException:
    """What ``work`` raises, in a thread: a hang is a failure of the test, not of the whole run."""
    caught: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "hangs"
    assert caught, "came to its end"
    return caught[0]


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__} {error!r} {' '.join(getattr(error, '__notes__', []))}"


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("stage", STAGES)
def test_every_kind_of_exception_comes_with_its_index(stage: str, workers: str) -> None:
    for kind in KINDS:
        bad = Bad(kind, stage)
        mapper = SampleMapper(
            SamplerView(COUNT), bad, bad.transform, length=bad.length, **WORKERS[workers]
        )
        error = raised_by(lambda mapper=mapper: list(mapper))
        mapper.shutdown()
        assert isinstance(error, Exception), (kind, error)
        if kind != "UnreadableError":
            assert f"dataset[{BAD}]" in text_of(error), (kind, text_of(error))
            assert kind in text_of(error) or "sys.exit(3)" in text_of(error)
        else:
            assert f"dataset[{BAD}]" in " ".join(error.__notes__) + str(error.args)


@pytest.mark.parametrize("kind", ["PanicException", "StopIteration", "CancelledError"])
@pytest.mark.parametrize("workers", ["inline", "threads", "processes"])
def test_the_default_loader_raises_it_and_never_takes_it_for_the_end(
    workers: str, kind: str
) -> None:
    settings = {**WORKERS[workers]}
    settings["worker_method"] = settings.pop("method", "thread")
    for join, prefetch in ((True, 2), (False, 2), (True, 0)):
        bad = Bad(kind, "transform")
        with odb_loader(
            bad, bad.transform, token_budget=20, window=8, join=join, prefetch=prefetch, **settings
        ) as loader:
            error = raised_by(lambda loader=loader: list(loader))
        assert isinstance(error, SampleError)
        assert f"dataset[{BAD}]" in str(error)
        assert kind in str(error)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_skipped_ones_are_counted_and_nothing_else_is_lost(kind: str, workers: str) -> None:
    bad = Bad(kind, "transform")
    mapper = SampleMapper(
        SamplerView(COUNT), bad, bad.transform, on_error="skip", **WORKERS[workers]
    )
    caught: list[Any] = []

    def work() -> None:
        caught.extend(mapper)
        raise LookupError

    assert isinstance(raised_by(work), LookupError)
    mapper.shutdown()
    assert {sample.view.index for sample in caught} == set(range(COUNT)) - {BAD}
    assert mapper.drops.counts == {"error": 1}


def test_ctrl_c_in_the_callers_own_thread_stays_what_it_is_and_loses_nothing() -> None:
    interrupts = iter([KeyboardInterrupt("now")])

    def transform(row: dict[str, Any]) -> dict[str, Any]:
        if row["input_ids"][0] == BAD:
            for error in interrupts:
                raise error
        return row

    mapper = SampleMapper(SamplerView(COUNT), Tokens([3] * COUNT), transform, on_error="skip")
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(sample.view.index for sample in mapper)
    seen.extend(sample.view.index for sample in mapper)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("make", [Unpicklable, Unreadable, lambda: lambda: 0, threading.Lock])
def test_a_result_that_cannot_travel_is_an_error_of_its_sample_alone(make: Any) -> None:
    def transform(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "thing": make()} if row["input_ids"][0] == BAD else row

    for on_error in ("raise", "skip"):
        mapper = SampleMapper(
            SamplerView(COUNT),
            Tokens([3] * COUNT),
            transform,
            on_error=on_error,
            **WORKERS["processes"],
        )
        if on_error == "raise":
            error = raised_by(lambda mapper=mapper: list(mapper))
            assert isinstance(error, SampleError)
            assert f"dataset[{BAD}]" in str(error)
        else:
            assert len(list(mapper)) == COUNT - 1
        mapper.shutdown()


def test_an_error_of_the_default_loader_leaves_it_usable() -> None:
    bad = Bad("PanicException", "transform")
    with odb_loader(bad, bad.transform, token_budget=20, window=8, num_workers=1) as loader:
        raised_by(lambda: list(loader))
        bad.stage = "none"
        assert len(positions(list(loader))) == COUNT

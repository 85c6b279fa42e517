"""Streams: exact resume of iterables with a state, with a lossy one, and without any."""

import logging
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torchdata.nodes import ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader

from odb_nodes import (
    AlignNode,
    GroupingNode,
    OdbLoader,
    PadCollate,
    SampleError,
    StateError,
    StreamView,
    pack_states,
    unpack_states,
)
from tests.helpers import same_batches

datasets.disable_progress_bars()
ROWS = [{"input_ids": [index] * (1 + index * 7 % 13)} for index in range(60)]


class Plain:
    """Re-iterable, without a state."""

    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


class Stateful:
    """With a state of its own, as torchdata's protocol has it; resumes at its end if told so."""

    def __init__(self) -> None:
        self.at = 0
        self._resume = False

    def __iter__(self) -> Iterator[Any]:
        if not self._resume:
            self.at = 0
        self._resume = False
        while self.at < len(ROWS):
            self.at += 1
            yield ROWS[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self._resume = state["at"], True


def _generate(shards: list[int]) -> Iterator[Any]:
    for shard in shards:
        for index in range(15):
            yield {"input_ids": [shard * 15 + index] * (1 + (index * 7 + shard) % 13)}


def _longer(batch: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": [[*ids, 1] for ids in batch["input_ids"]]}


def hugging_face() -> Any:
    shards = {"shards": [0, 1, 2, 3]}
    return datasets.IterableDataset.from_generator(_generate, gen_kwargs=shards)


def arrow() -> Any:
    """As ``load_dataset(..., streaming=True)`` reads most files: whole Arrow tables at a time."""
    return datasets.Dataset.from_list(ROWS).to_iterable_dataset(num_shards=2)


def loader_of(workers: int, **options: Any) -> Any:
    rows: Any = ROWS  # its annotation asks for a Dataset, any sequence will do
    return StatefulDataLoader(rows, batch_size=None, num_workers=workers, **options)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


KINDS: dict[str, Callable[[], Any]] = {
    "plain": Plain,
    "list": lambda: ROWS,
    "stateful": Stateful,
    "hugging face": hugging_face,
    "shuffled hugging face": lambda: hugging_face().shuffle(seed=3, buffer_size=10),
    "mapped hugging face": lambda: (
        hugging_face()
        .map(_longer, batched=True, batch_size=7)
        .filter(lambda row: len(row["input_ids"]) != 5)
    ),
    "arrow": arrow,
    "mapped arrow": lambda: arrow().map(lambda row: {"input_ids": [*row["input_ids"], 1]}),
    "filtered arrow": lambda: arrow().filter(lambda row: len(row["input_ids"]) != 5),
    "batched arrow": lambda: arrow().map(_longer, batched=True, batch_size=7),
    "concatenated arrow": lambda: datasets.concatenate_datasets([arrow(), arrow()]).skip(3),
    "dataloader of a table": lambda: StatefulDataLoader(
        datasets.Dataset.from_list(ROWS), batch_size=None
    ),
    "dataloader": lambda: loader_of(0),
    "shuffled dataloader": lambda: loader_of(0, shuffle=True, generator=seeded()),
    "dataloader with workers": lambda: loader_of(2),
}


def to_array(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": np.array(row["input_ids"])}


def build(kind: str, mappers: int | None = None) -> OdbLoader:
    source: Any = StreamView(KINDS[kind]())
    if mappers is not None:
        source = ParallelMapper(source, to_array, num_workers=mappers)
    groups = GroupingNode(source, 40, window=12)
    return OdbLoader(AlignNode(groups), collate=PadCollate(), prefetch=0)


def ids(batches: list[Any]) -> list[int]:
    """The first token of every sample, which is its number."""
    return [int(row[0]) for batch in batches for row in batch.tensors["input_ids"]]


@pytest.mark.slow
@pytest.mark.parametrize("mappers", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_resumes_exactly_at_every_step(kind: str, mappers: int | None) -> None:
    with build(kind, mappers) as loader:
        first, second = list(loader), list(loader)
    assert {batch.info.epoch for batch in first} == {0}
    assert {batch.info.epoch for batch in second} == {1}
    every = 5 if mappers or "workers" in kind else 1  # starting workers takes a while
    for step in sorted({*range(0, len(first), every), len(first) - 1, len(first)}):
        with build(kind, mappers) as saver:
            iterator = iter(saver)
            head = [next(iterator) for _ in range(step)]
            state = saver.state_dict()
        assert unpack_states(pack_states([state])) == [state]
        with build(kind, mappers) as loader:
            loader.load_state_dict(state)
            rest = list(loader)
            if step < len(first):
                assert same_batches(head + rest, first)
                rest = list(loader)
            if kind == "shuffled dataloader":  # torchdata draws its next order anew after a resume
                assert sorted(ids(rest)) == list(range(60))
            else:
                assert same_batches(rest, second)


def test_a_shuffled_stream_has_another_order_in_the_next_epoch() -> None:
    with build("shuffled hugging face") as loader:
        first, second = list(loader), list(loader)
    assert sorted(ids(first)) == sorted(ids(second)) == list(range(60))
    assert not same_batches(first, second)


def test_reading_again_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    view = StreamView(Plain())
    for _ in range(7):
        next(view)
    state = view.state_dict()
    with caplog.at_level(logging.INFO):
        again = StreamView(Plain())
        again.reset(state)
    assert next(again) == ROWS[7]
    assert [record.message for record in caplog.records] == [
        "reading 7 items of the stream again to find the place"
    ]


def test_epochs_are_told_to_the_iterable_and_can_be_set() -> None:
    class Told(Plain):
        epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    loader = OdbLoader(AlignNode(GroupingNode(StreamView(Told()), 40)), collate=PadCollate())
    with loader:
        list(loader)
        list(loader)
        loader.set_epoch(7)
        assert {batch.info.views[0].epoch for batch in loader} == {7}
    assert Told.epochs == [0, 1, 7]


def test_what_cannot_be_resumed_is_refused_when_it_is_built() -> None:
    class Half(Plain):
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(ValueError, match="new iterator at every"):
        StreamView(iter(ROWS))
    with pytest.raises(ValueError, match="both state_dict and load_state_dict"):
        StreamView(Half())
    with pytest.raises(ValueError, match="resume must be"):
        StreamView(ROWS, resume="never")  # type: ignore[arg-type]
    assert list(StreamView(Half(), resume="skip")) == ROWS


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        {"epoch": 0},
        {"epoch": -1, "num_yielded": 0, "exhausted": False, "iterable": None},
        {"epoch": 0, "num_yielded": "3", "exhausted": False, "iterable": None},
        {"epoch": 0, "num_yielded": 3, "exhausted": 0, "iterable": None},
        {"epoch": 0, "num_yielded": 61, "exhausted": False, "iterable": None},
        {"epoch": 0, "num_yielded": 3, "exhausted": False, "iterable": {"at": 3}},
        {"epoch": 0, "num_yielded": 3, "exhausted": False, "iterable": b"at"},
    ],
    ids=str,
)
def test_a_damaged_stream_state_is_a_state_error(bad: Any) -> None:
    for iterable in (Plain(), Stateful()):
        with pytest.raises(StateError):
            StreamView(iterable)._restore(bad)


def test_a_state_that_a_checkpoint_cannot_hold_fails_at_the_first_sample() -> None:
    class Odd(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at, "lock": object()}

    with pytest.raises(SampleError, match=r"the state of Odd\['lock'\] is a object"):
        next(StreamView(Odd()))
    assert next(StreamView(Odd(), resume="skip")) == ROWS[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_iterables_own_state_is_relied_on_only_where_it_loses_nothing(kind: str) -> None:
    view = StreamView(KINDS[kind]())
    next(view)
    lossy = {"shuffled hugging face", "mapped arrow", "filtered arrow", "batched arrow"}
    without = {"plain", "list"}
    assert (view.state_dict()["iterable"] is None) == (kind in lossy | without)


class StandsStill(Stateful):
    """As datasets 5.0.0: it resumes rightly, and then gives the same state for ever."""

    def __init__(self, stands: str) -> None:
        super().__init__()
        self.stands, self.loaded = stands, None

    def state_dict(self) -> dict[str, Any]:
        if self.loaded is None:
            return {"at": self.at}
        begun = self.at > self.loaded
        return {
            "at": {"loaded": self.loaded, "start": 0, "first": self.loaded + begun}[self.stands]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = state["at"]


@pytest.mark.parametrize("stands", ["loaded", "start", "first"])
def test_a_state_that_stands_still_after_a_resume_is_noticed(stands: str) -> None:
    for places in ([1, 2], [7, 8, 9], [20, 21, 40], [0, 5, 30, 59], [59, 60], [3, 3, 3], [1, 60]):
        state, seen = None, []
        for begin, end in pairwise([0, *places, len(ROWS) + 1]):
            view = StreamView(StandsStill(stands))
            view.reset(state)
            seen += list(islice(view, end - begin))
            state = view.state_dict()
        assert seen == ROWS
        view.reset(None)
        head = list(islice(view, 5))
        again = StreamView(StandsStill(stands))
        again.reset(view.state_dict())
        assert head + list(again) == ROWS, places

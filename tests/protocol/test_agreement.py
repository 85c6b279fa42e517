"""All ranks agree on what they start from before the first batch; an error says what differs."""

import copy
import logging
from typing import Any

import pytest

from odb_nodes import OdbLoader, PeerFailedError, StreamView, odb_loader
from odb_nodes.nodes.align_node import AlignNode
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.protocol.agreement import Agreement, explain
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens, random_lengths

DATA = Tokens(random_lengths(60))


def loader_of(transport: Any, **changes: Any) -> OdbLoader:
    settings: dict[str, Any] = {"token_budget": 200, "window": 8, "prefetch": 0, "timeout_s": 20}
    return odb_loader(changes.pop("dataset", DATA), transport=transport, **settings | changes)


def errors_of(size: int, make: Any) -> list[str]:
    """What every rank raises on its way to the first batch."""

    def work(rank: int, transport: Any) -> str:
        with make(rank, transport) as loader:
            try:
                next(iter(loader))
            except PeerFailedError as error:
                return str(error)
            return ""

    return InProcessWorld(size, timeout_s=40).run(work)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("window", (8, 16)),
        ("budget", (200, 300)),
        ("policy", ("sliding", "tumbling")),
        ("seed", (0, 7)),
        ("join", (True, False)),
        ("sample_quota", (5, 6)),
        ("shuffle", (True, False)),
        ("dataset_id", ("a", "b")),
        ("idle", ("emit", "skip")),
    ],
)
def test_settings_that_differ_are_named_with_values_and_ranks(
    name: str, values: tuple[Any, Any]
) -> None:
    argument = "token_budget" if name == "budget" else name
    told = errors_of(3, lambda rank, t: loader_of(t, **{argument: values[rank == 1]}))
    for rank, message in enumerate(told):
        assert f"{name} is " in message
        assert "on ranks 0, 2 and " in message
        assert "on rank 1" in message
        assert str(values[1]) in message
        assert f"this is rank {rank}" in message


def test_another_number_of_samples_is_named() -> None:
    told = errors_of(2, lambda rank, t: loader_of(t, dataset=Tokens([3] * (60 + rank))))
    assert all("num_samples is 60 on rank 0 and 61 on rank 1" in message for message in told)


def states_after(steps: int, epoch: int = 0) -> list[Any]:
    def work(_: int, transport: Any) -> Any:
        with loader_of(transport, steps_per_round=4) as loader:
            loader.set_epoch(epoch)
            iterator = iter(loader)
            for _ in range(steps):
                next(iterator)
            return loader.state_dict()

    return InProcessWorld(2).run(work)


@pytest.mark.parametrize(
    ("places", "word"),
    [
        (((1, 0), (2, 0)), "step is 1 on rank 0 and 2 on rank 1"),  # both within one round
        (((5, 0), (2, 0)), "step is 5 on rank 0 and 2 on rank 1"),
        (((2, 0), (2, 1)), "epoch is 0 on rank 0 and 1 on rank 1"),
        (((2, 0), None), "step is 2 on rank 0 and 0 on rank 1"),  # one rank loaded nothing
    ],
    ids=str,
)
def test_states_of_two_moments_are_refused_before_the_first_batch(places: Any, word: str) -> None:
    def make(rank: int, transport: Any) -> OdbLoader:
        loader = loader_of(transport, steps_per_round=4)
        if places[rank] is not None:
            loader.load_state_dict(states_after(*places[rank])[rank])
        return loader

    assert all(word in message for message in errors_of(2, make))


def test_ranks_that_read_the_same_stream_are_told_so(caplog: pytest.LogCaptureFixture) -> None:
    rows = [DATA[index] for index in range(30)]

    def work(rank: int, transport: Any, part: bool) -> int:
        mine = rows[rank::2] if part else rows
        with loader_of(transport, dataset=mine_of(mine), split="none") as loader:
            return sum(batch.info.num_samples for batch in loader)

    with caplog.at_level(logging.WARNING):
        InProcessWorld(2).run(lambda rank, transport: work(rank, transport, True))
        assert "same samples" not in caplog.text
        InProcessWorld(2).run(lambda rank, transport: work(rank, transport, False))
    assert "all ranks read the same samples" in caplog.text


def mine_of(rows: list[Any]) -> Any:
    return StreamView(rows)


def test_a_stream_is_split_as_asked_and_never_in_silence() -> None:
    rows = [{"input_ids": [index] * (1 + index % 7)} for index in range(31)]

    class Stream:
        def __iter__(self) -> Any:
            return iter(rows)

    def work(rank: int, transport: Any) -> list[int]:
        with loader_of(transport, dataset=Stream(), split="every") as loader:
            batches = [batch for batch in loader if not batch.info.idle]
            return [int(ids[0]) for batch in batches for ids in batch.tensors["input_ids"]]

    found = InProcessWorld(2).run(work)
    assert sorted(found[0] + found[1]) == list(range(31))
    with pytest.raises(ValueError, match="nothing says which rank takes which items"):
        loader_of(InProcessWorld(2).transports[0], dataset=Stream())


def test_a_view_that_is_dealt_to_other_ranks_than_exchange_is_refused() -> None:
    from odb_nodes import SampleMapper, SamplerView

    groups = GroupingNode(SampleMapper(SamplerView(60), DATA), 200)
    with pytest.raises(ValueError, match=r"rank 0 of 2, the view is of rank=0, world_size=1"):
        AlignNode(groups, transport=InProcessWorld(2).transports[0])


def test_what_differs_is_listed_by_value_and_rank() -> None:
    same = Agreement(settings={"window": 4, "policy": "sliding"}, epoch=1, step=2)
    other = Agreement(settings={"window": 8, "policy": "sliding"}, epoch=1, step=2)
    assert same.digest != other.digest
    assert same.digest == copy.copy(same).digest
    told = explain([same.pack(), other.pack(), same.pack()])
    assert told == "window is 4 on ranks 0, 2 and 8 on rank 1"
    many = explain([same.pack()] * 20 + [other.pack()])
    assert many == "window is 4 on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more and 8 on rank 20"


@pytest.mark.parametrize("kind", ["mapper", "stream"])
@pytest.mark.parametrize("how", ["empty", "dropped"])
def test_a_rank_without_samples_borrows_a_filler_and_stays_in_step(kind: str, how: str) -> None:
    data = Tokens([5 + index % 9 for index in range(20)])

    def keep(row: Any) -> Any:
        return None if row["input_ids"][0] % 2 else row

    def work(rank: int, transport: Any) -> list[Any]:
        dataset: Any = data
        if kind == "stream":
            rows = [data[index] for index in range(0 if rank and how == "empty" else 20)]
            dataset = StreamView(rows[rank::2])
        elif how == "empty":
            dataset = Tokens([4])
        transform = keep if how == "dropped" else None
        with loader_of(
            transport, dataset=dataset, transform=transform, shuffle=False, split="none"
        ) as loader:
            return list(loader)

    left, right = InProcessWorld(2).run(work)
    assert len(left) == len(right) > 0
    assert all(batch.info.idle for batch in right)
    for batch in right:
        assert (batch.tensors["labels"] == -100).all()
        assert batch.tensors["input_ids"].shape[0] == 1


def test_a_filler_of_ones_own_is_used_and_what_cannot_be_lent_says_what_to_do() -> None:
    class Odd:
        """Nothing that a checkpoint, or another rank, could be given."""

    def odd(row: Any) -> Any:
        return {**row, "odd": Odd()}

    filler = {"input_ids": [7, 7], "labels": [7, 7], "odd": None}

    def work(rank: int, transport: Any, given: Any) -> Any:
        with loader_of(transport, dataset=Tokens([4]), transform=odd, filler=given) as loader:
            try:
                return list(loader)
            except Exception as error:
                return error

    left, right = InProcessWorld(2).run(lambda rank, transport: work(rank, transport, filler))
    assert len(left) == len(right) == 1
    assert right[0].tensors["input_ids"].tolist() == [[7, 7]]
    assert right[0].tensors["labels"].tolist() == [[-100, -100]]
    errors = InProcessWorld(2).run(lambda rank, transport: work(rank, transport, None))
    assert "pass filler=" in str(errors[1])

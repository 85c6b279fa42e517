"""States survive the usual means of saving, of the same data only, and refuse absurd numbers."""

import json
from collections import OrderedDict, namedtuple
from enum import IntEnum, StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from odb_nodes import (
    GroupingNode,
    SampleError,
    StateError,
    StreamView,
    TokenBudget,
    odb_loader,
    state_from_json,
    state_to_json,
)
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens, positions, random_lengths, same_batches
from tests.states import COUNT, DATA, build, run, state_after, whole_epoch

KINDS = ["mapper", "stream"]


class Stream:
    """An iterable with a state of its own, in which tensors and dicts come and go."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < COUNT:
            self.at += 1
            yield DATA[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        seen = {str(index): index for index in range(self.at % 3)}
        return {"at": torch.tensor(self.at), "seen": seen, "list": list(seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = int(state["at"])


def make(kind: str, **changes: Any) -> Any:
    return build(DATA if kind == "mapper" else Stream(), **changes)


def by_torch(state: Any, folder: Path, fresh: Any) -> Any:
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def by_distributed_checkpoint(state: Any, folder: Path, fresh: Any) -> Any:
    state_dict_saver.save({"loader": state}, checkpoint_id=folder / "dcp", no_dist=True)
    found = {"loader": fresh}
    state_dict_loader.load(found, checkpoint_id=folder / "dcp", no_dist=True)
    return found["loader"]


def by_json(state: Any, folder: Path, fresh: Any) -> Any:
    (folder / "state.json").write_text(state_to_json(state))
    json.loads((folder / "state.json").read_text())
    return state_from_json((folder / "state.json").read_text())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("means", [by_torch, by_distributed_checkpoint, by_json])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_comes_back_into_a_new_loader_and_into_one_that_was_used(
    kind: str, means: Any, tmp_path: Path
) -> None:
    def only_some(row: dict[str, Any]) -> dict[str, Any] | None:
        return None if len(row["input_ids"]) % 5 == 0 else row

    with make(kind, transform=only_some) as loader:
        whole = list(loader)
    for step in (2, 6):
        with make(kind, transform=only_some) as loader:
            head = run(loader, step)
            state = loader.state_dict()
        for used in (0, 4):
            with make(kind, transform=only_some) as loader:
                if used:
                    run(loader, used)
                (tmp_path / f"{step}{used}").mkdir()
                found = means(state, tmp_path / f"{step}{used}", loader.state_dict())
                assert found == state
                loader.load_state_dict(found)
                assert same_batches(head + list(loader), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_has_the_same_structure_at_every_moment(kind: str) -> None:
    def keys(value: Any, where: str = "") -> set[str]:
        if not isinstance(value, dict):
            return {where}
        return set().union(*(keys(item, f"{where}.{key}") for key, item in value.items()))

    with make(kind, transform=lambda row: row if len(row["input_ids"]) % 5 else None) as loader:
        structure = keys(loader.state_dict())
        for _ in loader:
            assert keys(loader.state_dict()) == structure
        assert keys(loader.state_dict()) == structure


def test_another_ranks_state_is_refused_with_what_to_do() -> None:
    def work(rank: int, transport: Any) -> Any:
        with build(transport=transport) as loader:
            run(loader, 1)
            return loader.state_dict()

    states = InProcessWorld(2).run(work)
    # A distributed checkpoint keeps one state per key: every rank gets that of rank 0.
    with (
        build(transport=InProcessWorld(2).transports[1]) as loader,
        pytest.raises(StateError, match="save under a key per rank"),
    ):
        loader.load_state_dict(states[0])


# The same data


@pytest.mark.parametrize("prefetch", [0, 2])
def test_other_data_of_the_same_length_is_noticed(prefetch: int) -> None:
    other = Tokens([length + (index % 7 == 0) for index, length in enumerate(DATA.lengths)])
    unmasked = [{"input_ids": row["input_ids"]} for row in (DATA[i] for i in range(COUNT))]
    for step in (1, 5):
        _, state = state_after(step, steps_per_round=6)
        for wrong in (other, unmasked, Tokens(random_lengths(COUNT, seed=5))):
            with build(wrong, prefetch=prefetch, steps_per_round=6) as loader:
                loader.load_state_dict(state)
                with pytest.raises(StateError, match="must be of the same dataset"):
                    list(loader)


def test_a_state_without_a_name_of_its_data_loads_where_there_is_one_and_the_other_way() -> None:
    for saved, here in ((None, "a"), ("a", None), ("a", "a")):
        head, state = state_after(2, dataset_id=saved)
        with build(dataset_id=here) as loader:
            loader.load_state_dict(state)
            assert same_batches(head + list(loader), whole_epoch())


# Content of streams


class Color(IntEnum):
    RED = 1


class Word(StrEnum):
    YES = "yes"


Pair = namedtuple("Pair", "left right")


class Text(str):
    """A subclass that would come back as plain text."""


@pytest.mark.parametrize(
    "value",
    [
        Pair(1, 2), Color.RED, Word.YES, Text("a"), OrderedDict(a=1),
        torch.nn.Parameter(torch.ones(1)), np.ma.masked_array([1]), {1, 2}, {1.5: 2}, object(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_content_that_would_come_back_as_another_type_is_refused_at_the_first_sample(
    value: Any,
) -> None:
    rows = [{"input_ids": [1, 2], "extra": [value]}] * 3
    node = GroupingNode(StreamView(rows), 8)
    with pytest.raises(SampleError, match=r"data\['extra'\]\[0\] is a "):
        next(node)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.5), np.float32(0.5), np.int64(3), np.int8(3), np.bool_(True), np.float16(1),
        True, 3, 0.5, "a", b"a", None, (1, [2]), {"a": {1: 2}},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_content_keeps_its_exact_type_over_a_resume(value: Any) -> None:
    rows = [{"input_ids": [1] * (1 + index), "extra": value} for index in range(4)]
    node = GroupingNode(StreamView(rows), 4, window=4)
    node.refill()
    again = GroupingNode(StreamView(rows), 4, window=4)
    again.reset(node.state_dict())
    for group in next(again):
        for sample in group:
            found = sample.data["extra"]
            assert type(found) is type(value)
            assert found == value


@pytest.mark.parametrize("name", ["arrived", "filler_length", "overlong"])
@pytest.mark.parametrize("number", [1 << 40, 1 << 62, -1, 2.5, True, "3"])
def test_absurd_numbers_of_a_stream_are_refused_not_computed_with(name: str, number: Any) -> None:
    with make("stream") as loader:
        run(loader, 2)
        state = loader.state_dict()
    state["source"][name] = number
    plausible = name != "arrived" and number == 1 << 40
    with make("stream") as loader:
        if plausible:  # a length, or a count that only people read
            loader.load_state_dict(state)
        else:
            with pytest.raises(StateError):
                loader.load_state_dict(state)


# One file of all ranks


@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 2), (3, 1), (1, 2), (2, 3)])
def test_saved_and_loaded_together_on_any_number_of_ranks(
    old: int, new: int, tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "loader.odb"

    def save(_: int, transport: Any) -> list[int]:
        with build(transport=transport, prefetch=2) as loader:
            batches = run(loader, 2)
            loader.save(path)
            loader.save(path)  # over the old one
            return positions(batches)

    def load(_: int, transport: Any) -> list[int]:
        with build(transport=transport, prefetch=2) as loader:
            loader.load(path)
            return positions(list(loader))

    parts = [*InProcessWorld(old).run(save), *InProcessWorld(new).run(load)]
    assert sorted(chain(*parts)) == list(range(COUNT))
    assert [file.name for file in path.parent.iterdir()] == ["loader.odb"]


def test_a_file_that_cannot_be_written_or_read_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "damaged").write_bytes(b"\x10" * 30)

    def work(_: int, transport: Any) -> list[str]:
        told = []
        with build(transport=transport) as loader:
            run(loader, 1)
            for action, path in (
                (loader.save, tmp_path / "file" / "x"),
                (loader.load, tmp_path / "missing"),
                (loader.load, tmp_path / "damaged"),
            ):
                try:
                    action(path)
                except (OSError, StateError) as error:
                    told.append(str(error))
        return told

    for told in InProcessWorld(2).run(work):
        assert len(told) == 3


# Arguments


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"window": 2.5}, "window must be an integer of at least 1, got 2.5"),
        ({"window": True}, "window must be an integer"),
        ({"window": "8"}, "window must be an integer"),
        ({"window": 0}, "window must be an integer of at least 1, got 0"),
        ({"token_budget": None}, "token_budget must be an integer of at least 1, got None"),
        ({"token_budget": 100.0}, "token_budget must be an integer"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"shuffle": 1}, "shuffle must be True or False, got 1"),
        ({"join": "yes"}, "join must be True or False"),
        ({"sample_quota": 0}, "sample_quota must be an integer of at least 1"),
        ({"steps_per_round": 1.5}, "steps_per_round must be an integer"),
        ({"policy": "carry"}, "'carry' is called 'sliding' now"),
        ({"policy": None}, "policy must be one of"),
        ({"idle": "stay"}, "idle must be 'emit' or 'skip'"),
        ({"prefetch": -1}, "prefetch must be an integer of at least 0"),
        ({"pin_memory": 1}, "pin_memory must be True or False"),
        ({"restart": None}, "restart must be True or False"),
        ({"timeout_s": 0}, "timeout_s must be a positive number"),
        ({"timeout_s": float("nan")}, "timeout_s must be a positive number"),
        ({"num_workers": -1}, "num_workers must be an integer of at least 0"),
        ({"overlong": "cut"}, "overlong must be 'alone' or 'drop' or 'raise'"),
        ({"collate": 3}, "collate must be a function"),
        ({"transform": 3}, "transform must be a function"),
        ({"length": 3}, "length must be a function"),
        ({"dataset_id": 3}, "dataset_id must be text or None"),
        ({"dataset": "text"}, "got a str"),
        ({"dataset": {"train": [1]}}, "one split of a DatasetDict"),
        ({"dataset": 3}, "__iter__, or be a torchdata node, got int"),
    ],
    ids=str,
)
def test_arguments_are_checked_at_construction(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        build(changes.pop("dataset", DATA), **changes)


def test_numpy_values_are_taken_and_states_stay_plain() -> None:
    plain = {"token_budget": 256, "window": 16, "seed": 3, "shuffle": True, "steps_per_round": 2}
    numpy = {
        "token_budget": np.int32(256),
        "window": np.int64(16),
        "seed": np.uint8(3),
        "shuffle": np.bool_(True),
        "steps_per_round": np.int16(2),
    }
    with odb_loader(DATA, **plain) as loader, odb_loader(DATA, **numpy) as other:  # type: ignore[arg-type]
        run(loader, 2)
        run(other, 2)
        assert state_to_json(loader.state_dict()) == state_to_json(other.state_dict())
        other.load_state_dict(loader.state_dict())


def test_limits_that_make_each_other_void_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with build(token_budget=TokenBudget(256, max_samples=17)):
        assert "max_samples=17 can never bind" in caplog.text
    with build([DATA[0]], prefetch=5):
        assert "prefetch=5 batches is more than this rank's 1 samples" in caplog.text
    caplog.clear()
    with build(token_budget=40_000, window=4) as loader:
        list(loader)
    assert "a window of 4 samples fits into one group" in caplog.text
    caplog.clear()
    from odb_nodes import PadCollate

    with build(collate=PadCollate(pad_to_multiple_of=100)) as loader:
        list(loader)
    assert caplog.text.count("over the token budget of 256") == 1


@pytest.mark.parametrize("cost", [1.5, -1, None, "3", True])
def test_costs_that_are_no_numbers_are_refused_with_the_index(cost: Any) -> None:
    from odb_nodes import Limit

    budget = TokenBudget(256, extra={"patches": Limit(cost=lambda data: cost, total=9)})
    with (
        build(token_budget=budget) as loader,
        pytest.raises(SampleError, match=r"'patches'.*\[\d+"),
    ):
        list(loader)

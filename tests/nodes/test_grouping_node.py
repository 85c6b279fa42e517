"""GroupingNode: what it admits, what it drops, and the window it cuts."""

import logging
from typing import Any

import pytest
from torchdata.nodes import IterableWrapper

from odb_nodes import GroupingNode, SampleError, SampleMapper, SamplerView, describe_state
from odb_nodes import odb_loader as build_loader
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens, positions, random_lengths

BUDGET = 64


def make(lengths: list[int], **changes: Any) -> GroupingNode:
    samples = SampleMapper(SamplerView(len(lengths), shuffle=False), Tokens(lengths))
    return GroupingNode(samples, BUDGET, **{"window": 8, **changes})


def indices(windows: list[Any]) -> list[int]:
    return [sample.view.index for groups in windows for group in groups for sample in group]


def test_alone_it_yields_one_window_after_the_other_cut_within_the_budget() -> None:
    lengths = random_lengths(50, longest=BUDGET)
    windows = list(make(lengths))
    for number, groups in enumerate(windows):
        share = range(8 * number, min(50, 8 * number + 8))
        assert sorted(indices([groups])) == list(share)
        for group in groups:
            assert len(group) * max(sample.length for sample in group) <= BUDGET


def test_a_source_without_samples_is_measured_and_its_items_become_samples() -> None:
    rows = [{"tokens": [1] * n} for n in (3, 5, 2)]
    node = GroupingNode(IterableWrapper(rows), BUDGET, length=lambda row: len(row["tokens"]))
    (groups,) = list(node)
    samples = [sample for group in groups for sample in group]
    assert sorted(sample.length for sample in samples) == [2, 3, 5]
    assert sorted(sample.view.position for sample in samples) == [0, 1, 2]


def test_a_source_item_without_length_is_an_error_at_once_that_names_the_keys() -> None:
    node = GroupingNode(IterableWrapper([{"b": 1, "a": 2}]), BUDGET)
    with pytest.raises(SampleError, match=r"'a', 'b'.*length="):
        next(node)


def test_a_sample_that_no_state_can_hold_is_an_error_at_once() -> None:
    node = GroupingNode(IterableWrapper([{"input_ids": [1], "extra": object()}]), BUDGET)
    with pytest.raises(SampleError, match="extra"):
        next(node)


def test_empty_samples_are_dropped_and_counted() -> None:
    node = make([0, 5, 0, 7])
    assert sorted(indices(list(node))) == [1, 3]
    assert node.all_drops() == {"empty": 2}


def test_an_overlong_sample_goes_out_alone_with_one_warning_an_epoch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = make([5, 65, 70, 6])
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            node.reset()
            (groups,) = list(node)
        alone = [group for group in groups if group[0].length > BUDGET]
        assert [len(group) for group in alone] == [1, 1]
        assert sorted(indices([groups])) == [0, 1, 2, 3]
        assert node.num_overlong == 2
        assert len(caplog.records) == 1
        assert "dataset[1] has 65 tokens" in caplog.text


def test_overlong_samples_can_be_dropped_and_are_counted_with_their_index() -> None:
    node = make([5, 65, 70, 6], overlong="drop")
    assert sorted(indices(list(node))) == [0, 3]
    assert node.all_drops() == {"overlong": 2}
    assert [index for index, _ in node.drops.details] == [1, 2]


def test_an_overlong_sample_can_be_an_error() -> None:
    with pytest.raises(SampleError, match=r"dataset\[1\] has 65 tokens.*budget of 64"):
        next(make([5, 65, 70], overlong="raise"))


def drop_even_and_fail_on_nine(row: dict[str, Any]) -> dict[str, Any] | None:
    if 9 in row["input_ids"]:
        raise ValueError("nine")
    return row if len(row["input_ids"]) % 2 or len(row["input_ids"]) == 0 else None


@pytest.mark.parametrize("policy", ["sliding", "tumbling"])
def test_whatever_is_dropped_ranks_stay_in_step_and_every_sample_is_accounted_for(
    policy: str,
) -> None:
    lengths = [0, 9, 65, 4, 0, 7, 80, 33, 3, 9] * 6

    def work(rank: int, transport: Any) -> Any:
        ranks = {"process_group": transport, "rank": rank, "world_size": 3}
        settings: dict[str, Any] = {"policy": policy, "window": 8, "prefetch": 0}
        with build_loader(
            Tokens(lengths),
            drop_even_and_fail_on_nine,
            token_budget=BUDGET,
            on_error="skip",
            overlong="drop",
            **ranks,
            **settings,
        ) as loader:
            batches = list(loader)
            return batches, describe_state(loader.state_dict())["dropped"]

    ranks = InProcessWorld(3).run(work)
    assert len({len(batches) for batches, _ in ranks}) == 1
    seen = sum(len(positions(batches)) for batches, _ in ranks)
    dropped = {
        reason: sum(drops.get(reason, 0) for _, drops in ranks)
        for reason in ("empty", "filtered", "error", "overlong")
    }
    # By length: 0 twice, 9 is an odd length, 65 too long, 4 and 80 even, the one of value 9 fails.
    assert dropped == {"empty": 12, "filtered": 12, "error": 1, "overlong": 6}
    assert seen + sum(dropped.values()) == len(lengths)


@pytest.mark.parametrize("changes", [{"window": 0}, {"overlong": "cut"}])
def test_arguments_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        make([1], **changes)

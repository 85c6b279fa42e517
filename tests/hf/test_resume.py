"""Killed and started again, a run is the run that nothing disturbed."""

from pathlib import Path

import pytest

from tests.hf.stacks import NUM_ROWS, audit, run, stopped
from tests.hf.worlds import world

EVERY_SAMPLE_ONCE = [(epoch, position) for epoch in range(2) for position in range(NUM_ROWS)]

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("stack", ["Trainer", "Trainer + LoRA", "SFTTrainer + LoRA", "ZeRO-2"])
def test_a_run_killed_and_started_again_ends_with_the_same_weights(
    stack: str, tmp_path: Path
) -> None:
    whole = world(run, 2, stack, tmp_path / "whole", "first", None, {})
    killed = tmp_path / "killed"
    last = whole[0][2]
    at = last - 1 if last % 2 else last - 2  # one step after a checkpoint, before the last
    at = at if at % 2 else at - 1
    assert world(run, 2, stack, killed, "first", at, {}, may_die=[0, 1]) == [None, None]
    again = world(run, 2, stack, killed, "again", None, {})
    assert again[0][1] == at - 1, "it did not resume from its newest checkpoint"
    assert {weights for weights, _, _ in again} == {whole[0][0]}
    seen = audit(killed, "first", at - 1) + audit(killed, "again")
    assert sorted(seen) == EVERY_SAMPLE_ONCE
    assert sorted(audit(tmp_path / "whole", "first")) == EVERY_SAMPLE_ONCE


def test_a_run_goes_on_with_one_rank_and_then_with_three(tmp_path: Path) -> None:
    stack = "Trainer"
    world(run, 2, stack, tmp_path, "two", 3, {}, may_die=[0, 1])
    world(run, 1, stack, tmp_path, "one", 5, {}, may_die=[0])
    ends = world(run, 3, stack, tmp_path, "three", None, {})
    assert ends[0][1] == 4
    assert len({weights for weights, _, _ in ends}) == 1
    seen = audit(tmp_path, "two", 2) + audit(tmp_path, "one", 4) + audit(tmp_path, "three")
    assert sorted(seen) == EVERY_SAMPLE_ONCE


def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    steps = world(stopped, 2, tmp_path, "first")
    assert steps[0] == steps[1] == 3
    ends = world(run, 2, "Trainer", tmp_path, "again", None, {})
    assert ends[0][1] == 3
    assert sorted(audit(tmp_path, "first", 3) + audit(tmp_path, "again")) == EVERY_SAMPLE_ONCE

"""Killed, stopped and resumed runs of the public command lose no sample and repeat none."""

import signal
from pathlib import Path

import pytest

from tests.titan.runs import Result, Run, delivered, summary, train

NUM_ROWS = 240
EVERY_ROW_ONCE = [(0, index) for index in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data_args: list[str]) -> Result:
    """A run on two ranks that nothing disturbs."""
    return train(tmp_path_factory.mktemp("whole"), *data_args, ranks=2)


def test_runs_killed_at_several_steps_lose_and_repeat_nothing(
    tmp_path: Path, data_args: list[str], whole: Result
) -> None:
    losses: dict[int, str] = {}
    last = max(whole.losses)
    kills = (4, 7, last - 2)
    for step in kills:
        run = Run(tmp_path, *data_args, ranks=2)
        run.wait_for_step(step, rank=1)
        run.kill()
        losses |= run.wait().losses
    losses |= train(tmp_path, *data_args, ranks=2).losses
    assert sorted(delivered(tmp_path)) == EVERY_ROW_ONCE
    assert losses == whole.losses
    result = summary(tmp_path)
    assert (result["coverage"], result["samples_emitted"]) == ("exact", NUM_ROWS)
    assert result["resumed_from"] % 3 == 0


def test_a_checkpoint_of_two_ranks_resumes_on_one(tmp_path: Path, data_args: list[str]) -> None:
    run = Run(tmp_path, *data_args, ranks=2)
    run.wait_for_step(5)
    run.kill()
    train(tmp_path, *data_args)
    assert sorted(delivered_to_step_of_resume(tmp_path)) == EVERY_ROW_ONCE
    assert summary(tmp_path)["coverage"] == "exact"


def delivered_to_step_of_resume(folder: Path) -> list[tuple[int, int]]:
    """As ``delivered``, where rank 1 is gone after the resume and cannot void its own lines."""
    step = summary(folder)["resumed_from"]
    with (folder / "audit.rank1.jsonl").open("a") as log:
        log.write(f'{{"resumed_from": {step}}}\n')
    return delivered(folder)


def test_resuming_a_finished_run_trains_nothing_and_says_so(
    tmp_path: Path, data_args: list[str]
) -> None:
    short = ["--data.max_samples", "40"]
    train(tmp_path, *data_args, *short)
    again = train(tmp_path, *data_args, *short)
    assert "Nothing left to train" in again.out
    assert not again.losses
    assert summary(tmp_path)["coverage"] == "exact"
    longer = train(tmp_path, *data_args, *short, "--data.epochs", "2")
    assert longer.losses
    assert summary(tmp_path)["samples_emitted"] == 80
    assert sorted(delivered(tmp_path)) == [(e, i) for e in (0, 1) for i in range(40)]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stopped_run_ends_cleanly_and_leaves_no_process(
    tmp_path: Path, data_args: list[str], ranks: int, signum: signal.Signals
) -> None:
    run = Run(tmp_path, *data_args, ranks=ranks)
    run.wait_for_step(2)
    mine = run.pids()
    run.process.send_signal(signum)
    result = run.wait(30)
    alive = [pid for pid in mine if Path(f"/proc/{pid}").exists()]
    assert not alive
    assert result.code == 128 + signum
    assert "Traceback" not in result.err
    assert "the same command resumes the run" in result.err

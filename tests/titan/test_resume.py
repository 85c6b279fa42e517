"""Killed, stopped and resumed runs of the public command lose no sample and repeat none."""

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.titan.runs import Result, Run, delivered, scalars, summary, train

pytestmark = pytest.mark.timeout(900)  # several runs a test

NUM_ROWS = 240
EVERY_ROW_ONCE = [(0, index) for index in range(NUM_ROWS)]


@dataclass(frozen=True)
class Whole:
    """A run that nothing disturbs: how it ended, and its folder."""

    result: Result
    folder: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data_args: list[str]) -> Whole:
    """A run on two ranks."""
    folder = tmp_path_factory.mktemp("whole")
    return Whole(train(folder, *data_args, "--metrics.enable_tensorboard", ranks=2), folder)


def test_runs_killed_at_several_steps_lose_and_repeat_nothing(
    tmp_path: Path, data_args: list[str], whole: Whole
) -> None:
    losses: dict[int, str] = {}
    last = max(whole.result.losses)
    kills = (4, last - 2)
    for step in kills:
        run = Run(tmp_path, *data_args, ranks=2)
        run.wait_for_step(step, rank=1)
        run.kill()
        losses |= run.wait().losses
    losses |= train(tmp_path, *data_args, "--metrics.enable_tensorboard", ranks=2).losses
    assert sorted(delivered(tmp_path)) == EVERY_ROW_ONCE
    assert losses == whole.result.losses
    result = summary(tmp_path)
    assert (result["coverage"], result["samples_emitted"]) == ("exact", NUM_ROWS)
    assert result["resumed_from"] % 3 == 0
    resumed, undisturbed = scalars(tmp_path), scalars(whole.folder)
    assert min(resumed["n_tokens_seen"]) == result["resumed_from"] + 1
    for tag in ("n_tokens_seen", "odb/samples_emitted", "odb/run_fraction"):
        for step, value in resumed[tag].items():
            assert undisturbed[tag][step] == value, (tag, step)
    # The counts since the last log go on too: the first one after a resume is not since step 0.
    for tag in ("odb/splits", "odb/recirculated", "odb/idle_steps", "odb/samples_per_step"):
        for step, value in resumed[tag].items():
            assert undisturbed[tag][step] == value, (tag, step)


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
    result = run.wait()
    assert not run.outliving(mine)
    assert result.code == 128 + signum
    assert "Traceback" not in result.err
    assert "the same command goes on from there" in result.err

"""A run that is asked to stop saves first, on a step that all ranks agree on."""

import signal
import time
from pathlib import Path

import pytest

from tests.titan.job.runs import EVERY_ROW_ONCE, check, finish
from tests.titan.runs import Run, delivered

pytestmark = pytest.mark.timeout(600)


def test_signals_to_the_launcher_or_to_one_rank_save_and_the_rest_comes_once(
    tmp_path: Path, data_args: list[str]
) -> None:
    run = Run(tmp_path, *data_args, ranks=2)
    run.wait_for_step(2)
    mine = run.pids()
    run.process.send_signal(signal.SIGTERM)
    result = run.wait()
    check("signal", result)
    assert not run.outliving(mine)
    again = Run(tmp_path, *data_args, "--data.odb.worker_method", "process", ranks=2)
    again.wait_for_step(8, rank=1)
    again.signal(1, signal.SIGTERM)
    check("signal", again.wait())
    finish(tmp_path, *data_args)
    assert sorted(delivered(tmp_path)) == EVERY_ROW_ONCE


def test_a_time_limit_saves_and_exits_like_sigterm(tmp_path: Path, data_args: list[str]) -> None:
    result = Run(tmp_path, *data_args, "--data.stop_after_s", "0.1", ranks=2).wait()
    check("time limit", result)
    assert (tmp_path / "checkpoint" / "step-1" / ".metadata").exists()


def test_a_second_signal_ends_a_run_at_once_whatever_it_waits_for(
    tmp_path: Path, data_args: list[str]
) -> None:
    run = Run(tmp_path, *data_args, ranks=2)
    run.wait_for_step(2)
    run.signal(1, signal.SIGSTOP)  # rank 0 waits in a collective, where no Python runs
    run.process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    started = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    run.signal(1, signal.SIGCONT)
    result = run.wait()
    assert time.monotonic() - started < 60
    check("second signal", result)


def test_a_signal_before_the_first_step_ends_at_once(tmp_path: Path, data_args: list[str]) -> None:
    run = Run(tmp_path, *data_args, "--comm.init_timeout_seconds", "60", env={"WORLD_SIZE": "2"} | {
        "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    })  # fmt: skip  # waits for a second rank that never comes
    run.wait_for_listening()
    run.process.send_signal(signal.SIGTERM)
    check("early signal", run.wait())


def test_a_run_without_checkpoints_says_that_nothing_was_saved(
    tmp_path: Path, data_args: list[str]
) -> None:
    run = Run(tmp_path, *data_args, "--checkpoint.no-enable", ranks=2)
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGTERM)
    check("not saved", run.wait())

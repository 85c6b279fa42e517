"""A second job, a killed rank, no memory, a taken port: one line, and the trace in a file."""

import signal
import socket
from pathlib import Path

import pytest

from tests.titan.job.runs import EVERY_ROW_ONCE, check, finish
from tests.titan.runs import Run, delivered

pytestmark = pytest.mark.timeout(600)


def test_a_second_job_is_refused_and_the_lock_of_a_killed_one_is_taken_over(
    tmp_path: Path, data_args: list[str]
) -> None:
    run = Run(tmp_path, *data_args, ranks=2)
    run.wait_for_step(4)
    for rank in (0, 1):
        run.signal(rank, signal.SIGSTOP)
    other = Run(tmp_path / "other", *data_args, "--dump_folder", str(tmp_path), ranks=2).wait()
    check("locked", other)
    for rank in (0, 1):
        run.signal(rank, signal.SIGCONT)
    run.signal(1, signal.SIGKILL)
    check("killed", run.wait())
    finish(tmp_path, *data_args)
    assert sorted(delivered(tmp_path)) == EVERY_ROW_ONCE


def test_no_memory_names_the_shape_and_a_budget_that_fits(
    tmp_path: Path, data_args: list[str]
) -> None:
    args = [*data_args, "--data.odb.token_budget", "8192", "--module", "tests.titan.job.configs"]
    entry = "tests.titan.job.little_memory"
    result = Run(tmp_path, *args, "--config", "greedy", ranks=2, entry=entry).wait()
    check("out of memory", result)
    assert (tmp_path / "logs" / "rank1.log").read_text().count("Traceback") >= 1


def test_a_taken_port_is_one_line(tmp_path: Path, data_args: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        check("port", Run(tmp_path, *data_args, ranks=2, port=port).wait())


def test_ranks_that_cannot_reach_each_other_are_one_line(
    tmp_path: Path, data_args: list[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    args = [*data_args, "--comm.init_timeout_seconds", "1"]
    check("unreachable", Run(tmp_path, *args, env={**world, "MASTER_PORT": port}).wait())

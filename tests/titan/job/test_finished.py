"""A finished run that is started again says so and leaves its summary alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.titan.job.runs import check
from tests.titan.runs import Run

pytestmark = pytest.mark.timeout(600)
Copy = Callable[[Path], Path]


def test_a_finished_run_trains_nothing_and_keeps_its_summary(
    copy: Copy, finished: Path, data_args: list[str]
) -> None:
    folder = copy(finished)
    before = (folder / "odb_summary.json").read_bytes()
    args = [*data_args, "--data.max_samples", "40"]
    check("finished", Run(folder, *args, "--data.epochs", "2", ranks=2).wait())
    check("finished", Run(folder, *args, "--data.sample_quota", "20", ranks=2).wait())
    check("fewer epochs", Run(folder, *args, "--data.epochs", "1", ranks=2).wait())
    assert (folder / "odb_summary.json").read_bytes() == before

"""A disk that fills up, a limit on file sizes, a folder that cannot be written: one line each."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.titan.job.runs import EVERY_ROW_ONCE, check
from tests.titan.runs import Run, delivered
from titan_integration.run.checkpoints import newest_whole

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB; as root only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a file system of its own needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_the_checkpoint_before_it_whole(
    small_disk: Path, tmp_path: Path, data_args: list[str]
) -> None:
    folder = tmp_path / "run"  # of what the test writes: output and audit
    args = [*data_args, "--dump_folder", str(small_disk)]
    check("disk full", Run(folder, *args, ranks=2).wait())
    whole = newest_whole(small_disk / "checkpoint").checkpoint
    assert whole is not None
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert Run(folder, *args, ranks=2).wait().code == 0
    assert sorted(delivered(folder)) == EVERY_ROW_ONCE


def test_a_limit_on_file_sizes_is_named(tmp_path: Path, data_args: list[str]) -> None:
    limits = {resource.RLIMIT_FSIZE: 400_000}
    check("file limit", Run(tmp_path, *data_args, ranks=2, limits=limits).wait())
    # The first save was cut short and nothing was ever whole: the same command begins anew.
    again = Run(tmp_path, *data_args, ranks=2).wait()
    assert again.code == 0
    assert "passed over damaged or partial checkpoints: step-3: it has no .metadata" in again.out
    assert sorted(delivered(tmp_path)) == EVERY_ROW_ONCE
    assert not list(tmp_path.glob("checkpoint/*/.unfinished"))


def test_a_folder_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, data_args: list[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    folder = tmp_path / "file" / "run"
    result = Run(tmp_path / "logs", *data_args, "--dump_folder", str(folder), ranks=2).wait()
    check("not writable", result)
    assert "step 1" not in result.out


def test_a_read_only_file_system_is_refused_before_training(
    small_disk: Path, tmp_path: Path, data_args: list[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    folder = small_disk / "run"
    result = Run(tmp_path / "logs", *data_args, "--dump_folder", str(folder), ranks=2).wait()
    check("not writable", result)

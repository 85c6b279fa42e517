"""A data file that changes while it is trained on is noticed with its name."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.titan.job.runs import check
from tests.titan.runs import Run

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("key", ["shrunk", "grown"])
def test_a_file_that_shrinks_or_grows_is_named(
    tmp_path: Path, rows: Path, tokenizer: Path, key: str
) -> None:
    mine = tmp_path / "rows.jsonl"
    shutil.copy(rows, mine)
    args = ["--data.path", str(mine), "--hf_assets_path", str(tokenizer)]
    run = Run(tmp_path / "run", *args, ranks=2)
    run.wait_for_step(1)
    for rank in (0, 1):
        run.signal(rank, signal.SIGSTOP)
    os.truncate(mine, mine.stat().st_size // 2) if key == "shrunk" else mine.write_bytes(
        mine.read_bytes() + rows.read_bytes()
    )
    for rank in (0, 1):
        run.signal(rank, signal.SIGCONT)
    result = run.wait()
    check(key, result)
    assert str(mine) in result.out + result.err

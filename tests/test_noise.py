"""What a user's script prints and touches: nothing, however it ends."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow  # a process or two that import torch per test

# One process per rank; how it ends is the first argument, how it works the other three.
SCRIPT = """
import random, sys, threading
import numpy as np, torch, torch.distributed as dist
from odb_nodes import odb_loader
from tests.helpers import Tokens, random_lengths

def train(rank, size, end, method, context):
    group = dist.new_group(backend="gloo") if size > 1 else None
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    loader = odb_loader(
        Tokens(random_lengths(300)), token_budget=256, window=16, num_workers=1,
        worker_method=method, multiprocessing_context=context or None,
        process_group=group, rank=rank, world_size=size, timeout_s=30,
    )
    for epoch in range(2):
        for batch in loader:
            if epoch < 1 and batch.info.step == 5:
                break
            if epoch == 1 and batch.info.step == 5 and end != "finish":
                if end == "raise":
                    raise KeyError("the trainer's own error")
                if end == "shutdown":
                    loader.shutdown()
                if end == "drop":
                    del loader
                after = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
                assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
                return

def main():
    end, method, context, rank, size, store = sys.argv[1:]
    if int(size) > 1:
        dist.init_process_group(
            "gloo", init_method="file://" + store, rank=int(rank), world_size=int(size)
        )
    train(int(rank), int(size), end, method, context)

if __name__ == "__main__":
    main()
"""


def run_script(folder: Path, size: int, *args: str) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of the script on every rank."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    # Short, as the path of a socket in it may have about 100 characters.
    temporary = Path(tempfile.mkdtemp(prefix="odb-"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    environment |= {"PYTHONWARNINGS": "error::ResourceWarning"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *args, str(rank), str(size), str(folder / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    found = []
    try:
        for rank in ranks:
            out, err = rank.communicate(timeout=100)
            found.append((rank.returncode, out, err))
    finally:
        for rank in ranks:
            rank.kill()
    assert list(temporary.iterdir()) == []
    temporary.rmdir()
    return found


@pytest.mark.parametrize(
    ("end", "method", "context"),
    [
        ("finish", "thread", ""),
        ("leave", "thread", ""),
        ("drop", "process", "fork"),
        ("leave", "process", "spawn"),
        ("shutdown", "process", "forkserver"),
    ],
)
def test_a_script_prints_nothing_and_leaves_random_state_and_temporary_files_alone(
    tmp_path: Path, end: str, method: str, context: str
) -> None:
    assert run_script(tmp_path, 1, end, method, context) == [(0, "", "")]


@pytest.mark.parametrize(
    ("end", "method", "context"),
    [("leave", "thread", ""), ("drop", "process", "fork")],
)
def test_two_ranks_print_nothing_however_they_end(
    tmp_path: Path, end: str, method: str, context: str
) -> None:
    assert run_script(tmp_path, 2, end, method, context) == [(0, "", "")] * 2


def test_an_error_in_the_training_loop_is_all_that_is_printed(tmp_path: Path) -> None:
    for status, out, err in run_script(tmp_path, 2, "raise", "process", "fork"):
        assert status == 1
        assert out == ""
        assert err.count("Traceback") == 1
        assert err.splitlines()[-1].endswith("""KeyError: "the trainer's own error\"""")

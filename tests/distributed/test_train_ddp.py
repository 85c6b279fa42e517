"""The plain PyTorch example: killed on two ranks, interrupted and ended on one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import children_of
from tools.train_ddp import tokenize

ROOT = Path(__file__).parent.parent.parent
NUM_ROWS = 900
ENTRY = "tests.distributed.audited_train_ddp"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path, random = tmp_path / "corpus.jsonl", np.random.default_rng(0)
    with path.open("w") as file:
        for index in range(NUM_ROWS):
            words = ["alpha", "beta", "gamma"] * int(random.integers(1, 30))
            turns = [("user", f"row {index}"), ("assistant", " ".join(words))]
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def start(corpus: Path, audit: str, ranks: int) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    folder = corpus.parent
    options = ["--data", str(corpus), "--checkpoint", str(folder / "last.pt"), "--epochs", "2"]
    options += ["--token-budget", "2048", "--save-every", "2"]
    return subprocess.Popen(
        [sys.executable, *(torchrun if ranks > 1 else []), "-m", ENTRY, *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "AUDIT": str(folder / audit)},
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(folder: Path) -> list[Any]:
    """Epoch, step and positions of every batch in an audit."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("]")]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.01)


def test_killed_interrupted_and_resumed_it_trains_on_every_sample_once(corpus: Path) -> None:
    folder = corpus.parent
    killed = start(corpus, "killed", ranks=2)
    try:
        wait_for(folder / "last.pt", killed)
    finally:
        for pid in [*children_of(killed.pid), killed.pid]:  # torchrun's ranks are not its group
            os.kill(pid, signal.SIGKILL)
        killed.communicate()
    interrupted = start(corpus, "interrupted", ranks=1)
    wait_for(folder / "interrupted" / "rank0.jsonl", interrupted)
    interrupted.send_signal(signal.SIGINT)
    _, errors = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 0, errors
    assert "Traceback" not in errors
    finished = start(corpus, "finished", ranks=1)
    _, errors = finished.communicate(timeout=100)
    assert finished.returncode == 0, errors

    parts = [rows(folder / name) for name in ("killed", "interrupted", "finished")]
    for before, after in ((parts[0], parts[1]), (parts[1], parts[2])):
        first = min((epoch, step) for epoch, step, _ in after)
        before[:] = [row for row in before if (row[0], row[1]) < first]  # the rest was not saved
        assert before, "stopped before its first checkpoint: the test shows nothing"
    for epoch in range(2):
        trained = [p for part in parts for e, _, seen in part if e == epoch for p in seen]
        assert sorted(trained) == list(range(NUM_ROWS))
    nothing_left = start(corpus, "again", ranks=1)
    nothing_left.communicate(timeout=60)
    assert nothing_left.returncode == 0
    assert not (folder / "again").exists()


def test_only_what_the_assistant_says_carries_loss() -> None:
    chat = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    row = tokenize({"messages": chat})
    assert row["input_ids"].tolist() == [0, 97, 98, 0, 99, 100]
    assert row["labels"].tolist() == [-100, -100, -100, 99, 100, 0]

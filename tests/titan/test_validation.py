"""Validation reads every held-out row once, each time, and leaves nothing behind."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.titan.runs import delivered, train

pytestmark = pytest.mark.timeout(900)  # several runs a test

NUM_HELD_OUT = 23


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Path:
    """A file of its own with an odd number of rows, and one that cannot be trained on."""
    path = tmp_path_factory.mktemp("held_out") / "held_out.jsonl"
    lines = rows.read_text().splitlines()[-NUM_HELD_OUT:]
    path.write_text("\n".join([*lines, json.dumps({"prompt": "q", "response": ""})]))
    return path


def test_every_validation_covers_the_held_out_rows_and_leaves_no_thread(
    tmp_path: Path, data_args: list[str], held_out: Path
) -> None:
    args = ["--data.max_samples", "60", "--data.validation_path", str(held_out)]
    args += ["--validator.enable", "--validator.freq", "2", "--metrics.enable_tensorboard"]
    result = train(tmp_path, *data_args, *args, ranks=2, entry="tests.titan.count_after_validation")
    losses = re.findall(r"validate step: +(\d+) .*?loss: +(\S+) ", result.out)
    steps = [int(step) for step, _ in losses]
    assert len(steps) >= 3
    assert all(math.isfinite(float(loss)) for _, loss in losses)
    assert sorted(delivered(tmp_path)) == [(0, index) for index in range(60)]
    seen = [
        json.loads(line)
        for path in tmp_path.glob("audit.validation.rank*.jsonl")
        for line in path.read_text().splitlines()
    ]
    for step in steps:
        indices = [i for line in seen if line["step"] == step for i in line["indices"]]
        assert sorted(indices) == list(range(NUM_HELD_OUT))
    for rank in range(2):
        counts = json.loads((tmp_path / f"counts.rank{rank}.json").read_text())
        assert len(counts) == len(steps)
        # Groups, threads, processes; the threads of the training loader end with its data.
        assert all(
            now <= first for later in counts for now, first in zip(later, counts[0], strict=True)
        )

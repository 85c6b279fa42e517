"""The measurement of packed rows runs, and counts what it says."""

import pytest
import torch

from tools.bench.packed_speed import COLUMNS, main, measured_slope, step_seconds
from tools.train_packed import Model


def test_every_workload_gets_a_row_of_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workloads", "llava", "mmmix", "--samples", "24", "--repeat", "1", "--width", "16"]
    assert main([*options, "--budget", "512"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cost of a document" in lines[0]
    rows = [line.split("|")[1:-1] for line in lines[2:]]
    assert [row[0].strip() for row in rows] == ["llava", "mmmix"]
    assert all(float(cell) >= 0 for row in rows for cell in row[1:])
    assert set(COLUMNS) == {"padded", "first-fit", "packed"}


def test_a_step_is_measured_forward_and_backward() -> None:
    torch.manual_seed(0)
    model = Model(width=16)
    assert step_seconds(model, [3, 5], padded=True) > 0
    assert all(p.grad is not None for p in model.parameters())
    assert measured_slope(model, tokens=64, repeat=1) >= 0

"""Divergence ends in one line that names step and rows, and no checkpoint holds it."""

import json
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.titan.job.runs import check
from tests.titan.runs import Run
from titan_integration.run.checkpoints import newest_whole

pytestmark = pytest.mark.timeout(600)


def test_divergence_names_step_and_rows_and_is_in_no_checkpoint(
    tmp_path: Path, rows: Path, data_args: list[str]
) -> None:
    args = [*data_args, "--module", "tests.titan.job.configs", "--config", "explodes"]
    check("not finite", Run(tmp_path, *args, ranks=2).wait())
    [file] = tmp_path.glob("not_finite_step_*.json")
    told = json.loads(file.read_text())
    step = told["step"]
    audit = [
        json.loads(line)
        for rank in (0, 1)
        for line in (tmp_path / f"audit.rank{rank}.jsonl").read_text().splitlines()
    ]
    indices = [i for line in audit if line.get("step") == step for i in line["indices"]]
    places = [place for rank in told["ranks"] for place in rank["samples"]]
    assert sorted(places) == sorted(f"{rows}:{index + 1}" for index in indices)
    newest = newest_whole(tmp_path / "checkpoint").checkpoint
    assert newest is not None
    assert newest.step < step
    dcp_to_torch_save(newest.path, tmp_path / "weights.pt")
    state = torch.load(tmp_path / "weights.pt", weights_only=False)
    assert all(v.isfinite().all() for v in state.values() if isinstance(v, torch.Tensor))

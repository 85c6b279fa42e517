"""The example of packed rows: its gradients are those of samples one by one, and it learns."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from odb_nodes import PackCollate, odb_loader
from tests.helpers import Tokens, random_lengths
from tools.train_packed import Model, main

DATA = Tokens(random_lengths(40, seed=2, longest=60))


def summed_loss(model: Model, batch: dict[str, Any]) -> torch.Tensor:
    return functional.cross_entropy(model(batch), batch["labels"].flatten(), reduction="sum")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rows": 2},
        {"shape": "fixed", "overlong": "drop"},
        {"rows": 2, "shape": "fixed", "overlong": "drop"},
        {"cost": (1.0, 0.01)},
    ],
    ids=str,
)
def test_gradients_equal_those_of_samples_one_by_one(changes: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = Model(width=16, depth=2).double()
    with odb_loader(DATA, token_budget=128, layout="packed", window=16, **changes) as loader:
        for batch in loader:
            summed_loss(model, batch.tensors).backward()
    packed = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for index in range(len(DATA)):
        one = PackCollate()([DATA[index]])
        summed_loss(model, one).backward()
    alone = [p.grad for p in model.parameters() if p.grad is not None]
    for ours, wanted in zip(packed, alone, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_the_example_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bcd"}]}
    path.write_text((json.dumps(row) + "\n") * 400)
    main(["--path", str(path), "--token_budget", "128", "--steps", "12"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    first, last = (float(line.rpartition(" ")[2]) for line in (lines[0], lines[-1]))
    assert last < 0.9 * first

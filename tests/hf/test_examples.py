"""Every recipe trains exactly, through a stop and a resume, on two ranks."""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional

from odb_nodes import odb_loader
from tests.helpers import run_loaders
from tests.hf.worlds import world
from tools import train_ddp

RECIPES = ("accelerate_loop", "fsdp2", "lightning_module")
NUM_ROWS, ACCUMULATION, RATE = 40, 3, 0.5

pytestmark = pytest.mark.timeout(600)


def write_rows(path: Path) -> None:
    random = np.random.default_rng(0)
    with path.open("w") as file:
        for index in range(NUM_ROWS):
            words = ["alpha", "beta", "gamma"] * int(random.integers(1, 12))
            turns = [("user", f"row {index}"), ("assistant", " ".join(words))]
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(json.dumps({"messages": messages}) + "\n")


def options(folder: Path, **changes: Any) -> argparse.Namespace:
    numbers: dict[str, Any] = {
        "token_budget": 512,
        "epochs": 2,
        "accumulation": ACCUMULATION,
        "save_every": 1,
    }
    paths = {"data": folder / "rows.jsonl", "folder": folder}
    return argparse.Namespace(
        **{**numbers, **paths, "max_steps": 0, "rate": RATE, "devices": 2, **changes}
    )


def small() -> None:
    """The recipes' model, small enough for a test."""
    train_ddp.WIDTH, train_ddp.DEPTH = 16, 1


def train(rank: int, size: int, folder: Path, recipe: str, max_steps: int) -> dict[str, Any]:
    small()
    args = options(folder, max_steps=max_steps)
    args.folder = folder / recipe
    model = importlib.import_module(f"examples.{recipe}").train(args)
    return {name: _whole(weight) for name, weight in model.state_dict().items()}


def _whole(weight: torch.Tensor) -> Any:
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return whole.detach().clone().numpy()


def reference(folder: Path) -> dict[str, Any]:
    """The same steps in one process, in float64."""

    def build(**ranks: Any) -> Any:
        rows = train_ddp.Rows(folder / "rows.jsonl")
        return odb_loader(rows, train_ddp.tokenize, token_budget=512, **ranks)

    torch.manual_seed(0)
    model = train_ddp.Model().double()
    states = None
    for _ in range(2):
        results = run_loaders(2, build, states, None)
        states = [state for _, state in results]
        steps = list(zip(*(batches for batches, _ in results), strict=True))
        for start in range(0, len(steps), ACCUMULATION):
            _reference_step(
                model, [b for step in steps[start : start + ACCUMULATION] for b in step]
            )
    return {name: weight.detach().numpy() for name, weight in model.state_dict().items()}


def _reference_step(model: torch.nn.Module, batches: list[Any]) -> None:
    model.zero_grad()
    total = sum(batch.info.num_loss_tokens for batch in batches)
    for batch in batches:
        logits = model(batch.tensors["input_ids"]).flatten(0, 1)
        labels = batch.tensors["labels"].flatten()
        (functional.cross_entropy(logits, labels, reduction="sum") / total).backward()
    with torch.no_grad():
        for weight in model.parameters():
            assert weight.grad is not None
            weight.sub_(RATE * weight.grad)


@pytest.mark.parametrize("recipe", RECIPES)
def test_stopped_and_resumed_a_recipe_trains_as_one_process_does(
    recipe: str, tmp_path: Path
) -> None:
    small()
    write_rows(tmp_path / "rows.jsonl")
    torch.manual_seed(0)
    start = {name: w.double().numpy() for name, w in train_ddp.Model().state_dict().items()}
    wanted = reference(tmp_path)
    world(train, 2, tmp_path, recipe, 2)
    found = world(train, 2, tmp_path, recipe, 0)[0]
    moved = np.sqrt(sum(np.square(wanted[name] - start[name]).sum() for name in wanted))
    apart = [np.square(found[name] - wanted[name]).sum() for name in wanted]
    assert np.sqrt(sum(apart)) <= 1e-5 * moved

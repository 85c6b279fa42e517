"""Two ranks with pictures, or without, have the gradients of one process, in plain PyTorch."""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hf_integration.data.pictures import PictureCollate
from odb_nodes import PackCollate, PadCollate, odb_loader, optimizer_steps, sum_weight
from odb_nodes.protocol.transport import gather
from odb_nodes.vision import vision_length
from tests.hf.picture_models import (
    GEOMETRY,
    MODELS,
    PictureRows,
    all_in_float64,
    reference,
    worst_difference,
)
from tests.hf.worlds import world
from tests.vision.drawn import IMAGE_ID

pytestmark = pytest.mark.timeout(600)

# Name: pictures of each row, token budget, batches of an optimizer step.
CASES = {
    "a picture beside a text": ("10", 96, 1),
    "a picture beside an IDLE rank": ("1", 96, 1),
    "a text beside an IDLE rank": ("0", 96, 1),
    "two pictures beside a text": ("20", 96, 1),
    "texts on all ranks": ("0000", 96, 1),
    "accumulation with a short end": ("1021002", 60, 2),
    "a mixture": ("012001102001", 160, 1),
}
FEW = ["a picture beside a text", "accumulation with a short end", "a mixture"]
LAYOUTS: dict[str, Any] = {
    "padded": PadCollate(),
    "packed": PackCollate(form="position_ids"),
}
WORST = {torch.float32: 1e-5, torch.float64: 1e-12}


def wrapped(model: Any, how: str) -> Any:
    if how == "DDP":
        return DistributedDataParallel(model)
    for part in (model.model.visual, *model.model.language_model.layers):
        fully_shard(part)
    fully_shard(model)
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):  # gloo cannot average
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None, name
        whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
        found[name.removeprefix("module.")] = whole
    return found


def train_case(
    rank: int, size: int, model: str, how: str, layout: str, case: str, dtype: torch.dtype
) -> list[Any]:
    """(all, tower, size of the tower's) of each optimizer step; and whether a rank was IDLE."""
    kinds, budget, accumulation = CASES[case]
    rows = PictureRows(kinds)
    plain = MODELS[model]()
    net = wrapped(MODELS[model]().to(dtype), how)
    collate = PictureCollate(LAYOUTS[layout], GEOMETRY, IMAGE_ID)
    reports = []
    with odb_loader(
        rows,
        token_budget=budget,
        layout=layout,
        window=8,
        prefetch=0,
        length=vision_length,
        filler=collate.idle,
        collate=collate,
        shuffle=False,
        process_group=dist.new_group(backend="gloo"),
    ) as loader:
        for batches in optimizer_steps(loader, accumulation):
            weight = sum_weight(batches, size if how == "DDP" else 1)
            for batch in batches:
                inputs = collate.model_inputs(batch.tensors)
                labels = inputs.pop("labels")[:, 1:]
                logits = net(**inputs).logits[:, :-1].flatten(0, 1)
                (F.cross_entropy(logits, labels.flatten(), reduction="sum") * weight).backward()
            own = [view.index for batch in batches for view in batch.info.views]
            indices = [index for part in gather(own) for index in part]
            found = gradients(net)
            net.zero_grad()
            wanted = reference(plain, rows, indices)
            reports.append((*worst_difference(found, wanted), len(indices)))
    return reports


def train_all(rank: int, size: int, model: str, how: str, cases: list[str]) -> dict[Any, Any]:
    reports = {}
    for layout, case in itertools.product(LAYOUTS, cases):
        with all_in_float64():
            key = layout, case, torch.float64
            reports[key] = train_case(rank, size, model, how, *key)
    for layout in LAYOUTS:
        key = layout, "a mixture", torch.float32
        reports[key] = train_case(rank, size, model, how, *key)
    return reports


@pytest.mark.parametrize(
    ("model", "how", "cases"),
    [
        ("Qwen3-VL", "DDP", list(CASES)),
        ("Qwen2.5-VL", "FSDP2", list(CASES)),
        ("Qwen3-VL", "FSDP2", FEW),
        ("Qwen2.5-VL", "DDP", FEW),
    ],
)
def test_gradients_of_two_ranks_are_those_of_one_process(
    model: str, how: str, cases: list[str]
) -> None:
    reports = world(train_all, 2, model, how, cases)[0]
    worst: dict[Any, float] = {}
    for (layout, case, dtype), steps in reports.items():
        assert sum(step[2] for step in steps) == len(CASES[case][0]), case
        for whole, tower, _ in steps:
            worst[dtype] = max(worst.get(dtype, 0.0), whole, tower)
            assert max(whole, tower) <= WORST[dtype], (layout, case, dtype, whole, tower)
            if case in ("texts on all ranks", "a text beside an IDLE rank"):
                assert tower == 0.0, (layout, case)
    assert len(worst) == len(WORST)

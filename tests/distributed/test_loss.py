"""G7, the exact loss, in plain loops: DDP and fully_shard on real gloo ranks.

The reference knows the dataset and which samples a step held; it computes the gradient in one
process from unpadded samples, in float64, with the loss written out.
"""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from odb_nodes import odb_loader, optimizer_steps, sum_weight, token_weight
from tests.helpers import run_ranks

VOCAB, COUNT = 32, 42


class Prompts:
    """Rows with a masked prompt, all masked in every tenth; unshuffled, rank 0 has long ones."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(index)
        bounds = (4, 12) if index % 6 in (1, 5) else (50, 90)
        length = int(random.integers(*bounds))
        ids = random.integers(0, VOCAB, length)
        labels = random.integers(0, VOCAB, length)
        labels[: length if index % 10 == 0 else int(random.integers(0, length))] = -100
        return {"input_ids": ids, "labels": labels}


class Net(nn.Module):
    """Each token sees the mean of those before it, so that right padding changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8)
        self.mix = nn.Linear(8, 16)
        self.head = nn.Linear(16, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)  # (B, L, 8)
        count = torch.arange(1, ids.shape[1] + 1, dtype=hidden.dtype)[:, None]
        logits: torch.Tensor = self.head(torch.tanh(self.mix(hidden.cumsum(1) / count)))
        return logits.clone()  # (B, L, VOCAB); fully_shard warns of a view


def net(dtype: torch.dtype) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


def gradient(model: nn.Module) -> torch.Tensor:
    """All gradients as one float64 vector; sharded ones are put together."""
    parts = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        grad: Any = parameter.grad
        full = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        parts.append(full.detach().double().flatten())
    return torch.cat(parts)


def reference(indices: list[int]) -> torch.Tensor:
    """Gradient of the mean over all loss tokens of these samples."""
    model, rows = net(torch.float64), Prompts()
    losses, count = [], 0
    for index in indices:
        row = rows[index]
        log_p = model(torch.as_tensor(row["input_ids"])[None])[0].log_softmax(-1)
        losses += [-log_p[t, label] for t, label in enumerate(row["labels"]) if label >= 0]
        losses.append(0 * log_p.sum())  # a step may have no loss token at all
        count += int((row["labels"] >= 0).sum())
    torch.stack(losses).sum().div(max(1, count)).backward()
    return gradient(model)


def summed(model: nn.Module, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(tensors["input_ids"]).flatten(0, 1)
    return functional.cross_entropy(logits, tensors["labels"].flatten(), reduction="sum")


def sync_only(model: nn.Module, last: bool) -> None:
    """Reduce gradients over ranks in the last backward pass of an optimizer step only."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = last  # what no_sync() sets
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)


def wrap(kind: str, dtype: torch.dtype, size: int) -> tuple[nn.Module, int]:
    """The model, and by how much its reduction divides."""
    if kind == "ddp":
        return DistributedDataParallel(net(dtype)), size
    model: Any = fully_shard(net(dtype), mesh=init_device_mesh("cpu", (size,)))
    # Gloo has no averaging reduction: sum the gradients, and do not divide.
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)
    return model, 1


def worst_error(rank: int, size: int, kind: str, dtype: torch.dtype, accumulation: int) -> Any:
    """The largest relative error of any step, the IDLE steps seen, and the sizes of the steps."""
    model, divides_by = wrap(kind, dtype, size)
    ranks: dict[str, Any] = {
        "process_group": dist.new_group(backend="gloo"),
        "rank": rank,
        "world_size": size,
    }
    worst, idle, sizes = 0.0, 0, []
    with odb_loader(Prompts(), token_budget=100, window=6, shuffle=False, **ranks) as loader:
        for batches in optimizer_steps(loader, accumulation):
            model.zero_grad()
            for batch in batches:
                sync_only(model, batch is batches[-1])
                loss = summed(model, batch.tensors)
                if kind == "ddp" and accumulation == 1:
                    mean = loss / max(1, batch.info.num_loss_tokens)
                    (mean * token_weight(batch.info, size)).backward()
                else:
                    (loss * sum_weight(batches, divides_by)).backward()
                idle += batch.info.idle
            got = gradient(model)
            seen: list[Any] = [None] * size
            dist.all_gather_object(seen, [v.index for b in batches for v in b.info.views])
            want = reference([index for indices in seen for index in indices])
            worst = max(worst, float((got - want).norm() / want.norm().clamp(min=1e-30)))
            sizes.append(len(batches))
    return worst, idle, sizes


CASES = [
    (kind, dtype, accumulation)
    for kind in ("ddp", "fsdp")
    for dtype in (torch.float64, torch.float32)
    for accumulation in (1, 4)
]


def all_cases(rank: int, size: int) -> list[Any]:
    return [worst_error(rank, size, *case) for case in CASES]


@pytest.mark.parametrize("size", [2, 3])
def test_every_steps_gradient_is_that_of_the_mean_over_all_loss_tokens(size: int) -> None:
    results = run_ranks(all_cases, size)
    for case, by_rank in zip(CASES, zip(*results, strict=True), strict=True):
        _, dtype, accumulation = case
        errors, idle, sizes = zip(*by_rank, strict=True)
        assert max(errors) <= (1e-12 if dtype == torch.float64 else 1e-5), case
        assert sum(idle) > 0, "no rank was ever idle: the case shows less than it should"
        assert sizes[0] == sizes[-1]
        assert accumulation == 1 or 0 < sizes[0][-1] < accumulation, "no partial accumulation"
        print(*case, "largest relative error:", max(errors))

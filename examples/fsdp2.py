"""FSDP2 (``fully_shard``) in plain PyTorch, with ``torch.distributed.checkpoint``.

    torchrun --nproc_per_node=2 -m examples.fsdp2

Resumes mid-epoch on any number of ranks: the model is resharded, and so is the data's state.
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard

from examples.shared import local_device, make_loader, parse, sum_loss
from odb_nodes import OdbBatch, SharedState, optimizer_steps, sum_weight
from tools.train_ddp import Model


def train(args: argparse.Namespace) -> torch.nn.Module:
    """Train to the end of the epochs, or for ``max_steps`` more steps; returns the model."""
    if not dist.is_initialized():
        dist.init_process_group()
    device = local_device()
    torch.manual_seed(0)
    model = Model().to(device)
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    ranks = dist.get_world_size()
    if device.type == "cpu":  # gloo cannot average: sum, and weigh for a sum
        model.set_gradient_divide_factor(1.0)
        model.set_force_sum_reduction_for_comms(True)
        ranks = 1
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
    loader = make_loader(args)
    data = SharedState(loader)
    checkpoint = args.folder / "last"

    def parts() -> dict[str, object]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "data": data}

    if (checkpoint / ".metadata").exists():
        saved = parts()
        dcp.load(saved, checkpoint_id=checkpoint)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=saved["model"],  # type: ignore[arg-type]
            optim_state_dict=saved["optimizer"],  # type: ignore[arg-type]
        )

    def step(batches: list[OdbBatch]) -> None:
        weight = sum_weight(batches, ranks)
        for batch in batches:
            model.set_requires_gradient_sync(batch is batches[-1])
            (sum_loss(model, batch, device) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()

    steps = 0
    with loader:
        for _ in range(data.epoch, args.epochs):
            for batches in optimizer_steps(loader, args.accumulation):
                step(batches)
                steps += 1
                if steps % args.save_every == 0:
                    dcp.save(parts(), checkpoint_id=checkpoint)
                if steps == args.max_steps:
                    return model
    return model


if __name__ == "__main__":
    train(parse())

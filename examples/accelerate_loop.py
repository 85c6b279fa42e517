"""Accelerate: exact loss over ranks and accumulated batches, checkpoints that resume mid-epoch.

    accelerate launch --num_processes 2 -m examples.accelerate_loop

The loader is not prepared: it deals out the samples itself. ``gradient_accumulation_steps`` stays
1, since ``backward`` would divide by it and flush it only at the end of a prepared loader.
"""

import argparse
import contextlib

import torch
from accelerate import Accelerator

from examples.shared import make_loader, parse, sum_loss
from odb_nodes import OdbBatch, SharedState, optimizer_steps, sum_weight
from tools.train_ddp import Model


def train(args: argparse.Namespace) -> torch.nn.Module:
    """Train to the end of the epochs, or for ``max_steps`` more steps; returns the model."""
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    loader = make_loader(args)
    data = SharedState(loader)
    accelerator.register_for_checkpointing(data)
    checkpoint = args.folder / "last"
    if checkpoint.exists():
        accelerator.load_state(str(checkpoint))

    def step(batches: list[OdbBatch]) -> None:
        weight = sum_weight(batches, accelerator.num_processes)  # DDP averages over ranks
        for batch in batches:
            last = batch is batches[-1]
            with contextlib.nullcontext() if last else accelerator.no_sync(wrapped):
                accelerator.backward(sum_loss(wrapped, batch, accelerator.device) * weight)
        optimizer.step()
        optimizer.zero_grad()

    steps = 0
    with loader:
        for _ in range(data.epoch, args.epochs):
            for batches in optimizer_steps(loader, args.accumulation):
                step(batches)
                steps += 1
                if steps % args.save_every == 0:
                    accelerator.save_state(str(checkpoint))
                if steps == args.max_steps:
                    return model
    return model


if __name__ == "__main__":
    train(parse())

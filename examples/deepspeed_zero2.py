"""DeepSpeed ZeRO-2, the engine itself: exact loss, checkpoints that resume mid-epoch.

    deepspeed --num_gpus 2 --module examples.deepspeed_zero2

The engine would divide by its accumulation steps (``scale_wrt_gas=False``), and count batches to
find the step's end (``set_gradient_accumulation_boundary``), which a short last group ends early.
DeepSpeed resumes on as many ranks as saved.
"""

import argparse

import deepspeed
import torch

from examples.shared import local_device, make_loader, parse, sum_loss
from odb_nodes import OdbBatch, SharedState, optimizer_steps, sum_weight
from tools.train_ddp import Model

CONFIG = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": 1,  # counts only: a batch of any size trains
    "zero_allow_untested_optimizer": True,
}


def train(args: argparse.Namespace) -> torch.nn.Module:
    """Train to the end of the epochs, or for ``max_steps`` more steps; returns the model."""
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    loader = make_loader(args)
    data = SharedState(loader)
    if (args.folder / "latest").exists():
        _, kept = engine.load_checkpoint(str(args.folder))
        data.load_state_dict(kept["data"])

    def step(batches: list[OdbBatch]) -> None:
        weight = sum_weight(batches, engine.dp_world_size)  # ZeRO averages over ranks
        for batch in batches:
            engine.set_gradient_accumulation_boundary(batch is batches[-1])
            loss = sum_loss(engine, batch, local_device()) * weight
            engine.backward(loss, scale_wrt_gas=False)
        engine.step()

    steps = 0
    with loader:
        for _ in range(data.epoch, args.epochs):
            for batches in optimizer_steps(loader, args.accumulation):
                step(batches)
                steps += 1
                if steps % args.save_every == 0:
                    engine.save_checkpoint(
                        str(args.folder), client_state={"data": data.state_dict()}
                    )
                if steps == args.max_steps:
                    return model
    return model


if __name__ == "__main__":
    train(parse())

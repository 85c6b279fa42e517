"""What the recipes share: their command line, the loader, and the summed loss of a batch."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from odb_nodes import OdbBatch, OdbLoader, odb_loader
from tools.train_ddp import Rows, tokenize


def parse() -> argparse.Namespace:
    """Options of every recipe."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("outputs/corpus/corpus.jsonl"))
    parser.add_argument("--folder", type=Path, default=Path("outputs/example"))
    numbers = {"token-budget": 8192, "epochs": 1, "accumulation": 2, "save-every": 50}
    for name, default in {**numbers, "max-steps": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--devices", type=int, default=1, help="CPU processes, for Lightning")
    return parser.parse_args()


def local_device() -> torch.device:
    """This rank's GPU, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def make_loader(args: argparse.Namespace) -> OdbLoader:
    """Over a gloo group of its own; the process group must be there already."""
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    return odb_loader(
        Rows(args.data),
        tokenize,
        token_budget=args.token_budget,
        process_group=None if alone else dist.new_group(backend="gloo"),
        rank=0 if alone else dist.get_rank(),
        world_size=1 if alone else dist.get_world_size(),
    )


def sum_loss(model: nn.Module, batch: OdbBatch, device: torch.device) -> torch.Tensor:
    """Sum of the losses of all tokens of a batch; 0 with a backward pass where it is IDLE."""
    ids, labels = (batch.tensors[key].to(device) for key in ("input_ids", "labels"))
    logits = model(ids).flatten(0, 1)
    return functional.cross_entropy(logits, labels.flatten(), reduction="sum")

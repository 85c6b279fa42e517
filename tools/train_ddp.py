"""Train a small language model with ODB in plain PyTorch: one process, or DDP under torchrun.

    python -m tools.corpus --out outputs/corpus
    python -m tools.train_ddp
    torchrun --nproc_per_node=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 -m tools.train_ddp

Stop it with Ctrl-C, or kill it, and start it again, with any number of processes: it goes on from
its last checkpoint with the samples that were not trained on by then.
"""

import argparse
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import odb_nodes

VOCAB, MAX_TOKENS = 256, 1024  # bytes, the longest row
WIDTH, DEPTH, LEARNING_RATE = 64, 2, 1e-3


class Rows:
    """The rows of a JSONL file."""

    def __init__(self, path: Path) -> None:
        self.lines = path.read_bytes().splitlines()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Any:
        return json.loads(self.lines[index])


def tokenize(row: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A chat as bytes; a label is the next byte, or -100 where it is not the assistant's."""
    ids, spoken = bytearray(b"\0"), [False]
    for message in row["messages"]:
        text = message["content"].encode() + b"\0"
        ids += text
        spoken += [message["role"] == "assistant"] * len(text)
    tokens = torch.frombuffer(ids, dtype=torch.uint8)[: MAX_TOKENS + 1].long()
    labels = tokens.masked_fill(~torch.tensor(spoken[: MAX_TOKENS + 1]), -100)
    return {"input_ids": tokens[:-1], "labels": labels[1:]}


class Model(nn.Module):
    """A causal transformer; right padding needs no mask, since no token sees what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(MAX_TOKENS, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device)
        hidden = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        logits: torch.Tensor = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return logits  # (B, L, VOCAB)


class Run:
    """Model, optimizer and loader of one rank, and their checkpoint."""

    def __init__(self, args: argparse.Namespace, rank: int, world_size: int) -> None:
        self.args, self.rank, self.world_size = args, rank, world_size
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        self.bare = Model().to(self.device)
        self.model = DistributedDataParallel(self.bare) if world_size > 1 else self.bare
        self.optimizer = torch.optim.AdamW(self.bare.parameters(), lr=LEARNING_RATE)
        self.group = dist.new_group(backend="gloo") if world_size > 1 else None  # for ODB alone
        self.loader = odb_nodes.odb_loader(
            Rows(args.data),
            tokenize,
            token_budget=args.token_budget,
            num_workers=args.num_workers,
            process_group=self.group,
            rank=rank,
            world_size=world_size,
            pin_memory=torch.cuda.is_available(),
        )
        self.data = odb_nodes.SharedState(self.loader)
        if args.checkpoint.exists():
            self.load()

    def step(self, batches: list[odb_nodes.OdbBatch]) -> torch.Tensor:
        """One optimizer step; returns this rank's share of the mean loss over all loss tokens."""
        weight = odb_nodes.sum_weight(batches, self.world_size)
        share = torch.zeros((), device=self.device)
        self.optimizer.zero_grad()
        for batch in batches:
            if isinstance(self.model, DistributedDataParallel):
                self.model.require_backward_grad_sync = batch is batches[-1]  # no_sync() sets it
            ids, labels = (batch.tensors[key].to(self.device) for key in ("input_ids", "labels"))
            logits = self.model(ids).flatten(0, 1)
            loss = functional.cross_entropy(logits, labels.flatten(), reduction="sum") * weight
            loss.backward()
            share += loss.detach() / self.world_size
        self.optimizer.step()
        return share

    def save(self) -> None:
        """Write a checkpoint, whole or not at all; every rank must call this."""
        data = self.data.state_dict()
        if self.rank == 0:
            parts = {"model": self.bare.state_dict(), "optimizer": self.optimizer.state_dict()}
            self.args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            new = self.args.checkpoint.with_suffix(".new")
            torch.save({**parts, "data": data}, new)
            new.replace(self.args.checkpoint)

    def load(self) -> None:
        """Read the checkpoint, which may be of another number of ranks."""
        saved = torch.load(self.args.checkpoint, map_location=self.device, weights_only=True)
        self.bare.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.data.load_state_dict(saved["data"])


def train(run: Run, stop: threading.Event) -> None:
    """Train the epochs that are left, or until a rank is told to stop; all then know it."""
    args, progress = run.args, tqdm(unit=" samples", disable=run.rank > 0)
    for epoch in range(run.data.epoch, args.epochs):
        for count, batches in enumerate(odb_nodes.optimizer_steps(run.loader, args.accumulation)):
            stopping = torch.tensor(float(stop.is_set()), device=run.device)
            facts = torch.stack([run.step(batches), stopping])
            if run.world_size > 1:
                dist.all_reduce(facts)
            progress.update(sum(batch.info.total_num_samples for batch in batches))
            progress.set_description(f"epoch {epoch} loss {facts[0]:.3f}")
            if facts[1] or (count + 1) % args.save_every == 0:
                run.save()
            if facts[1]:
                return
        run.save()


def main() -> None:
    """Train as one process, or as one of the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("outputs/corpus/corpus.jsonl"))
    parser.add_argument("--checkpoint", type=Path, default=Path("outputs/train_ddp/last.pt"))
    numbers = {"token-budget": 8192, "epochs": 1, "accumulation": 1, "save-every": 50}
    for name, default in {**numbers, "num-workers": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args, stop = parser.parse_args(), threading.Event()

    def finish(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C does not wait

    for number in (signal.SIGINT, signal.SIGTERM):  # torchrun may turn the one into the other
        signal.signal(number, finish)
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if world_size > 1:
        dist.init_process_group()
    run = Run(args, rank, world_size)
    with run.loader:
        train(run, stop)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

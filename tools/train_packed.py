"""Train a small language model on packed rows in plain PyTorch, attention per document.

    python -m tools.corpus --out outputs/corpus
    python -m tools.train_packed --steps 50

Attention is a loop over documents, which runs anywhere. With flash-attention it is one call::

    flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal=True)
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import odb_nodes
from tools.train_ddp import MAX_TOKENS, VOCAB, Rows, tokenize

HEADS = 4


class Block(nn.Module):
    """Attention within documents, then a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """``x`` is ``[tokens, width]``, documents end to end; ``sizes`` are their lengths."""
        q, k, v = self.qkv(self.norms[0](x)).view(len(x), 3, HEADS, -1).permute(1, 2, 0, 3)
        documents = zip(*(part.split(sizes, dim=1) for part in (q, k, v)), strict=True)
        seen = [
            functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
            for q, k, v in documents
        ]
        x = x + self.out(torch.cat(seen, dim=2)[0].transpose(0, 1).flatten(1))
        fed: torch.Tensor = x + self.feed(self.norms[1](x))
        return fed


class Model(nn.Module):
    """A causal transformer over documents."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.places = nn.Embedding(MAX_TOKENS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCAB)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Logits ``[tokens, vocabulary]`` of a step of ``PackCollate``."""
        ids, places = batch["input_ids"].flatten(), batch["position_ids"].flatten()
        x = self.tokens(ids) + self.places(places)
        sizes = batch["cu_seqlens"].diff().tolist()
        for block in self.blocks:
            x = block(x, sizes)
        logits: torch.Tensor = self.head(x)
        return logits


def losses(
    model: Model, optimizer: torch.optim.Optimizer, loader: odb_nodes.OdbLoader
) -> Iterator[tuple[odb_nodes.StepInfo, float]]:
    """Train; yields each step and its mean loss over the tokens that carry some."""
    for batch in loader:
        labels = batch.tensors["labels"].flatten()
        loss = functional.cross_entropy(model(batch.tensors), labels, reduction="sum")
        loss = loss / max(1, batch.info.total_num_loss_tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield batch.info, float(loss.detach())


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_packed", description=__doc__)
    parser.add_argument("--path", type=Path, default=Path("outputs/corpus/corpus.jsonl"))
    parser.add_argument("--token_budget", type=int, default=4096)
    parser.add_argument("--steps", type=int, help="steps to train; default one epoch")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = odb_nodes.odb_loader(
        Rows(args.path),
        tokenize,
        token_budget=args.token_budget,
        layout="packed",
        cost=(1.0, 1e-4),
        window=256,
    )
    with loader:
        for info, loss in losses(model, optimizer, loader):
            print(
                f"step {info.step}: {info.num_samples} documents, {info.fill:.1%} full, "
                f"loss {loss:.4f}"
            )
            if info.step + 1 == args.steps:
                break


if __name__ == "__main__":
    main()

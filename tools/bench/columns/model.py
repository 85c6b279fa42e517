"""A plain decoder to train in the benchmark where torchtitan cannot run: rotary, SwiGLU, SDPA."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from odb_nodes.types import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Size of a decoder."""

    dim: int
    layers: int
    heads: int
    vocab: int


SHAPES = {
    "tiny": Shape(dim=32, layers=1, heads=2, vocab=512),
    "small": Shape(dim=64, layers=2, heads=2, vocab=2048),
    "large": Shape(dim=1024, layers=24, heads=16, vocab=32768),
}


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim = shape.dim
        self.heads = shape.heads
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 6 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """``x`` and the result are [B, L, dim]."""
        batch, length, dim = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each [B, heads, L, dim / heads]
        q, k = rotate(q, turns), rotate(k, turns)
        # Causal only. Right padding never reaches a real token; packed neighbours are seen, which
        # is cheaper than a document mask.
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        gate, value = self.up(self.norms[1](x)).chunk(2, dim=-1)
        out: torch.Tensor = x + self.down(functional.silu(gate) * value)
        return out


class Decoder(nn.Module):
    """Token ids to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.dim // shape.heads
        self.embed = nn.Embedding(shape.vocab, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocab, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum of the loss over tokens with a label; ``ids`` and ``labels`` are [B, L]."""
        turns = angles(ids.shape[1], self.width, ids.device)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, turns)
        logits = self.head(self.norm(x)).flatten(0, 1)
        flat = labels.flatten()
        return functional.cross_entropy(logits, flat, ignore_index=IGNORE_INDEX, reduction="sum")


def angles(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Rotary angles, ``[length, width / 2]``."""
    rates = 500000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    return torch.outer(torch.arange(length, device=device), rates)


def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn the two halves of the last dimension against each other; shape and dtype are kept."""
    cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

"""Attention per document: what varlen kernels compute, on any device and at their cost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from titan_integration.attention.dense import attend_with_lse
from titan_integration.upstream import VarlenAttention


class DocumentAttention(VarlenAttention):
    """Same result as VarlenAttention, one document after the other by SDPA.

    A packed row then costs the sum over its documents of their squared lengths, as it does on a
    GPU, and not the square of its own length, as where document masks are evaluated densely. For
    models whose masks are causal per document; takes any floating type. It does not compile: the
    documents of a row differ from step to step.

    Relies on torchtitan 0.3 for: models that make a VarlenMetadata for every VarlenAttention
    config; q, k, v as the first three arguments under these names; and an ``out_transform`` of the
    output and the log of each row's sum of exponentials.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        """No settings of its own."""

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: Any,
        scale: float | None = None,
        enable_gqa: bool = False,
        out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attend. Queries, keys and values are ``[batch, length, heads, head size]``."""
        batch, length = q_BLNH.shape[:2]
        sizes: list[int] = attention_masks.cu_seq_q.diff().tolist()
        documents = zip(*(_split(x, sizes) for x in (q_BLNH, k_BLNH, v_BLNH)), strict=True)
        if out_transform is None:
            outs = [self._attend(q, k, v, scale, enable_gqa) for q, k, v in documents]
            whole = torch.cat(outs, dim=2).transpose(1, 2)
            return whole.reshape(batch, length, *whole.shape[2:])
        pairs = [attend_with_lse(q, k, v, self._mask(q), scale) for q, k, v in documents]
        out = torch.cat([out for out, _ in pairs], dim=2).transpose(1, 2)
        lse = torch.cat([lse for _, lse in pairs], dim=2).transpose(1, 2)
        return out_transform(
            out.reshape(batch, length, *out.shape[2:]), lse.reshape(batch, length, -1)
        )

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float | None,
        enable_gqa: bool,
    ) -> torch.Tensor:
        """One document, ``[1, heads, length, head size]``."""
        left, right = self.window_size
        if left < 0 and right <= 0:  # all that came before, or all of the document
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=right == 0, scale=scale, enable_gqa=enable_gqa
            )
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=self._mask(q), scale=scale, enable_gqa=enable_gqa
        )

    def _mask(self, q: torch.Tensor) -> torch.Tensor:
        """Which keys each query of a document sees, bool ``[1, 1, length, length]``."""
        left, right = self.window_size
        places = torch.arange(q.shape[2], device=q.device)
        back = places[:, None] - places[None, :]
        mask = torch.ones_like(back, dtype=torch.bool)
        if left >= 0:
            mask &= back <= left
        if right >= 0:
            mask &= back >= -right
        return mask[None, None]


def _split(x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """``[batch, length, heads, size]``, rows end to end, as ``[1, heads, length, size]`` each."""
    rows = x.reshape(1, -1, *x.shape[2:]).transpose(1, 2)
    return list(rows.split(sizes, dim=2))

"""Flex attention evaluated densely: document masks where flex has no backward pass (CPU)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_mask

from titan_integration.upstream import FlexAttention


class DenseFlexAttention(FlexAttention):
    """Same result as FlexAttention, by SDPA with an explicit mask; memory grows with L squared.

    Relies on torchtitan 0.3 for: models that build their BlockMasks for every FlexAttention config,
    each for many layers; q, k, v as the first three arguments under these names; and an
    ``out_transform`` of the output and the log of each row's sum of exponentials.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        """No settings of its own."""

    _latest: ClassVar[list[tuple[BlockMask, torch.Tensor]]] = []

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: BlockMask,
        scale: float | None = None,
        enable_gqa: bool = False,
        out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attend. Queries, keys and values are ``[batch, length, heads, head size]``.

        Raises:
            NotImplementedError: A score modification is asked for.
        """
        unsupported = [name for name, value in kwargs.items() if value is not None]
        if unsupported:
            raise NotImplementedError(f"dense flex attention takes no {unsupported[0]}")
        batch, length = q_BLNH.shape[:2]
        q, k, v = q_BLNH.transpose(1, 2), k_BLNH.transpose(1, 2), v_BLNH.transpose(1, 2)
        mask = self._dense(attention_masks, batch, length, q.device)
        if out_transform is None:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
            )
            return out.transpose(1, 2)
        out, lse = attend_with_lse(q, k, v, mask, scale)
        return out_transform(out.transpose(1, 2), lse.transpose(1, 2))

    @classmethod
    def _dense(cls, mask: BlockMask, batch: int, length: int, device: torch.device) -> torch.Tensor:
        """``mask`` as bool ``[batch, 1, length, length]``; many layers ask for the same one."""
        for known, dense in cls._latest:
            if known is mask:
                return dense
        dense = create_mask(mask.mask_mod, batch, 1, length, length, device=str(device))
        DenseFlexAttention._latest = [*cls._latest[-1:], (mask, dense)]  # a model has two at most
        return dense


def attend_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that also tells how much there was to attend to, which SDPA does not.

    Args:
        q: ``[batch, heads, length, head size]``.
        k: The same, or of fewer heads that divide those of ``q`` (grouped queries).
        v: As ``k``.
        mask: Bool ``[batch, 1, length, length]``; every row has a true one.
        scale: Factor of the scores; default ``head size ** -0.5``.
    Returns:
        The output, shaped and typed as ``q``, and the log of the sum of exponentials of the
        scores, float32 ``[batch, heads, length]``.
    """
    groups, dtype = q.shape[1] // k.shape[1], q.dtype
    q, k, v = q.float(), k.float(), v.float()  # many times faster than bfloat16 on a CPU
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(~mask, float("-inf"))
    lse = scores.logsumexp(dim=-1)
    return ((scores - lse.unsqueeze(-1)).exp() @ v).to(dtype), lse

"""Flex attention evaluated densely: document masks where flex has no backward pass (CPU)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torchtitan.models.common.attention import FlexAttention


class DenseFlexAttention(FlexAttention):
    """Same result as FlexAttention, by SDPA with an explicit mask; memory grows with L squared.

    Relies on torchtitan 0.3 for: models that build a BlockMask for every FlexAttention config, one
    for all layers, and q, k, v as the first three arguments under these names.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        """No settings of its own."""

    _latest: ClassVar[tuple[BlockMask, torch.Tensor] | None] = None

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: BlockMask,
        scale: float | None = None,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attend. Queries, keys and values are ``[batch, length, heads, head size]``.

        Raises:
            NotImplementedError: A score modification or output transform is asked for.
        """
        unsupported = [name for name, value in kwargs.items() if value is not None]
        if unsupported:
            raise NotImplementedError(f"dense flex attention takes no {unsupported[0]}")
        batch, length = q_BLNH.shape[:2]
        out = F.scaled_dot_product_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            attn_mask=self._dense(attention_masks, batch, length, q_BLNH.device),
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out.transpose(1, 2)

    @classmethod
    def _dense(cls, mask: BlockMask, batch: int, length: int, device: torch.device) -> torch.Tensor:
        """``mask`` as bool ``[batch, 1, length, length]``; all layers ask for the same one."""
        if cls._latest is None or cls._latest[0] is not mask:
            dense = create_mask(mask.mask_mod, batch, 1, length, length, device=str(device))
            DenseFlexAttention._latest = (mask, dense)
            return dense
        return cls._latest[1]

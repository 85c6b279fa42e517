"""Dense flex attention gives what flex attention gives, the sum of exponentials included."""

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from titan_integration.attention.dense import DenseFlexAttention

BATCH, LENGTH, HEADS, SIZE = 2, 48, 4, 8


def window(batch: object, head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Causal, five tokens back at most."""
    return (query >= key) & (query - key < 5)


def queries_keys_values(kv_heads: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    heads = (HEADS, kv_heads, kv_heads)
    return [torch.randn(BATCH, LENGTH, n, SIZE) for n in heads]


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_output_and_log_sum_of_exponentials_are_those_of_flex_attention(
    kv_heads: int, scale: float | None
) -> None:
    q, k, v = queries_keys_values(kv_heads)
    mask = create_block_mask(window, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
    expected, aux = flex_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_mask=mask,
        scale=scale,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    assert aux.lse is not None
    lse_BLH = aux.lse.transpose(1, 2)
    dense = DenseFlexAttention(DenseFlexAttention.Config())
    plain = dense(q, k, v, attention_masks=mask, scale=scale, enable_gqa=True)
    torch.testing.assert_close(plain, expected.transpose(1, 2))

    def transform(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        torch.testing.assert_close(out, expected.transpose(1, 2))
        torch.testing.assert_close(lse, lse_BLH)
        return out * torch.sigmoid(lse).unsqueeze(-1)

    sunk = dense(q, k, v, attention_masks=mask, scale=scale, out_transform=transform)
    torch.testing.assert_close(sunk, transform(expected.transpose(1, 2), lse_BLH))


def test_a_score_modification_is_refused_by_name() -> None:
    q, k, v = queries_keys_values(HEADS)
    mask = create_block_mask(window, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
    dense = DenseFlexAttention(DenseFlexAttention.Config())
    with pytest.raises(NotImplementedError, match="score_mod"):
        dense(q, k, v, attention_masks=mask, score_mod=max)

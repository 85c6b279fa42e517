"""Attention per document gives what document masks give, gradients and windows included."""

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from configs.llama3 import small
from titan_integration.training.batches import model_cost
from titan_integration.training.dense_attention import DenseFlexAttention
from titan_integration.training.document_attention import DocumentAttention
from titan_integration.upstream import create_varlen_metadata_for_document, llama3_registry

BATCH, LENGTH, HEADS, SIZE = 2, 24, 4, 8
POSITIONS = torch.tensor(
    [[*range(7), *range(1), *range(16)], [*range(24)]]  # the second row is one document
)
DENSE: Any = DenseFlexAttention(DenseFlexAttention.Config())


def attention(**options: Any) -> Any:
    return DocumentAttention(DocumentAttention.Config(**options))


DOCUMENTS = (POSITIONS == 0).cumsum(1)


def queries_keys_values(kv_heads: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    heads = (HEADS, kv_heads, kv_heads)
    return [
        torch.randn(BATCH, LENGTH, n, SIZE, dtype=torch.float64, requires_grad=True) for n in heads
    ]


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("left", [-1, 5])
def test_output_and_gradients_are_those_of_a_document_mask(kv_heads: int, left: int) -> None:
    def mask_mod(b: torch.Tensor, h: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        near = q - k <= (left if left >= 0 else LENGTH)
        return (q >= k) & near & (DOCUMENTS[b, q] == DOCUMENTS[b, k])

    mask = create_block_mask(mask_mod, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
    inputs = queries_keys_values(kv_heads)
    expected = DENSE(*inputs, attention_masks=mask, scale=0.7, enable_gqa=True)
    metadata = create_varlen_metadata_for_document(POSITIONS)
    documents = attention(window_size=(left, 0))
    found = documents(*inputs, attention_masks=metadata, scale=0.7, enable_gqa=True)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_an_epilogue_gets_the_log_of_the_sums_of_exponentials() -> None:
    def mask_mod(b: torch.Tensor, h: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (DOCUMENTS[b, q] == DOCUMENTS[b, k])

    def sink(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return out * torch.sigmoid(lse).unsqueeze(-1)

    mask = create_block_mask(mask_mod, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
    inputs = queries_keys_values(2)
    expected = DENSE(*inputs, attention_masks=mask, out_transform=sink)
    found = attention()(
        *inputs,
        attention_masks=create_varlen_metadata_for_document(POSITIONS),
        out_transform=sink,
    )
    torch.testing.assert_close(found, expected)


def test_the_cost_of_an_8b_model_is_that_of_its_matrices_and_its_causal_attention() -> None:
    per_token, per_pair = model_cost(llama3_registry("8B", attn_backend="varlen"))
    matmul = 8_030_261_248 - 128_256 * 4096  # all parameters but the token embedding
    assert per_token == pytest.approx(6 * matmul, rel=1e-3)
    assert per_pair == pytest.approx(6 * 32 * 4096, rel=1e-6)
    assert per_pair / per_token == pytest.approx(1.75e-5, rel=0.01)


def test_the_cost_follows_layers_and_width() -> None:
    one, two = (model_cost(small(num_layers=n)) for n in (1, 2))
    assert two[1] == 2 * one[1]

"""A flat tower gives what torchtitan's padded one gives, and the linear attention fla's results."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from configs.models import with_dense_flex
from configs.vision import with_flat_tower
from titan_integration.upstream import (
    ModelSpec,
    kimi_k2_7_registry,
    muse_glimmer_registry,
    qwen3_5_registry,
)
from titan_integration.vision.delta_net import CHUNK, causal_conv, chunks, gated_delta_rule
from titan_integration.vision.segments import segments

GRIDS = [(1, 4, 6), (1, 8, 2), (1, 2, 2), (1, 4, 6), (1, 10, 14)]
LENGTHS = [h * w for _, h, w in GRIDS]
SPECS: list[Callable[[], ModelSpec]] = [
    lambda: qwen3_5_registry("debugmodel"),
    lambda: muse_glimmer_registry("debugmodel_mm"),
    lambda: kimi_k2_7_registry("debugmodel"),
]


def towers(make: Callable[[], ModelSpec]) -> tuple[Any, Any]:
    """Torchtitan's and ours, of the same weights, in float64."""
    padded: Any = with_dense_flex(make()).model
    flat: Any = with_flat_tower(make()).model
    theirs, ours = padded.vision_encoder.build().double(), flat.vision_encoder.build().double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def tokens(out: torch.Tensor) -> torch.Tensor:
    """Of all pictures, one after the other."""
    if out.ndim == 2:
        return out
    return torch.cat([one[: n // 4] for one, n in zip(out, LENGTHS, strict=True)])


@pytest.mark.parametrize("make", SPECS, ids=["qwen3_5", "muse_glimmer", "kimi_k2_7"])
def test_output_and_gradients_are_those_of_the_padded_tower(make: Callable[[], ModelSpec]) -> None:
    torch.manual_seed(0)
    theirs, ours = towers(make)
    first = next(p for name, p in theirs.named_parameters() if p.ndim == 2 and "pos" not in name)
    patches = [torch.randn(n, first.shape[1], dtype=torch.float64) for n in LENGTHS]
    grid_thw, tail = torch.tensor(GRIDS), torch.ones(20, first.shape[1], dtype=torch.float64)
    expected = tokens(theirs(pad_sequence(patches, batch_first=True), grid_thw=grid_thw))
    found = tokens(ours(torch.cat([*patches, tail])[None], grid_thw=grid_thw))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # cosines are float32
    weights = torch.randn_like(expected)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    largest = max(float(p.grad.norm()) for p in theirs.parameters())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None
        assert float((one.grad - other.grad).norm()) <= 1e-6 * max(
            float(other.grad.norm()), 1e-6 * largest
        )


def test_what_pictures_leave_over_is_a_segment_of_its_own() -> None:
    found = segments([4, 8], 16, torch.device("cpu"))
    assert found.cu_seq_q.tolist() == [0, 4, 12, 16]
    assert segments([4, 8], 12, torch.device("cpu")).cu_seq_k.tolist() == [0, 4, 12]
    assert segments([4, 8], 64, torch.device("cpu")).max_q == 52


def test_another_family_is_refused_by_name() -> None:
    spec = qwen3_5_registry("debugmodel")
    spec.name = "llama3"
    with pytest.raises(ValueError, match=r"a flat tower is known of qwen3_5.*got 'llama3'"):
        with_flat_tower(spec)


def test_chunks_of_a_turn_are_those_of_the_longest_documents() -> None:
    table, counts = chunks([0, 1, 1 + CHUNK + 1])
    assert counts == [2, 1]
    assert table[0] == list(range(1, 1 + CHUNK))
    assert table[1] == [0] + [CHUNK + 2] * (CHUNK - 1)
    assert table[2][:2] == [CHUNK + 1, CHUNK + 2]


@pytest.mark.parametrize("lengths", [[1], [5, 1, 3], [70, 200, 64, 1, 65]])
def test_the_delta_rule_is_its_recurrence_per_document(lengths: list[int]) -> None:
    torch.manual_seed(1)
    total, heads, size = sum(lengths), 2, 4
    ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, v = (torch.randn(total, heads, size, dtype=torch.float64) for _ in range(3))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    g = -torch.rand(total, heads, dtype=torch.float64)
    beta = torch.rand(total, heads, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    found = gated_delta_rule(q, k, v, g, beta, ends)
    expected = recurrence(q, k, v, g, beta, ends)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    weights = torch.randn_like(expected)
    pairs = zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def recurrence(q: Any, k: Any, v: Any, g: Any, beta: Any, ends: list[int]) -> torch.Tensor:
    outs = []
    for t in range(ends[-1]):
        if t in ends:
            state = torch.zeros(*k.shape[1:], v.shape[-1], dtype=v.dtype)
        state = state * g[t].exp()[:, None, None]
        update = beta[t][:, None] * (v[t] - (state.mT @ k[t][..., None])[..., 0])
        state = state + k[t][..., None] * update[:, None]
        outs.append((state.mT @ q[t][..., None])[..., 0] * q.shape[-1] ** -0.5)
    return torch.stack(outs)


def test_a_convolution_does_not_reach_into_the_document_before() -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(1, 11, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    found = causal_conv(x, weight, torch.tensor([0, 1, 6, 11]))
    parts = [
        F.conv1d(F.pad(part.mT, (3, 0)), weight[:, None], groups=3).mT
        for part in x.split([1, 5, 5], dim=1)
    ]
    torch.testing.assert_close(found, torch.cat(parts, dim=1), rtol=1e-12, atol=1e-12)

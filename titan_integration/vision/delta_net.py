"""Qwen3.5's linear attention in plain torch, per document: for machines without triton.

The recurrence of one head over a document, with decays ``exp(g)``, gates ``beta`` and keys and
queries of length 1:

    S_t = exp(g_t) S_{t-1} + k_t u_t^T,    u_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t),
    o_t = S_t^T q_t / sqrt(key size)

is evaluated in chunks. Within one, with ``G`` the running sum of ``g``, the ``u`` solve a
triangular system (I + A) U = beta V - beta exp(G) K S_0, A_ij = beta_i exp(G_i - G_j) k_i k_j for
j < i. It is solved for all chunks together; only ``S`` goes from one chunk to the next.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from titan_integration.upstream import GatedDeltaKernel, GatedDeltaNet

CHUNK = 64  # tokens


class DocumentDeltaKernel(GatedDeltaKernel):
    """As fla's chunked kernel, on any device and of any floating type.

    Relies on torchtitan 0.3 for: the arguments of ``forward``, and offsets of the documents in all
    calls that train.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GatedDeltaKernel.Config):
        """No settings of its own."""

    def forward(
        self,
        xq_BLNK: torch.Tensor,
        xk_BLNK: torch.Tensor,
        xv_BLNV: torch.Tensor,
        g_BLN: torch.Tensor,
        beta_BLN: torch.Tensor,
        *,
        cu_seqlens: torch.Tensor | None = None,
        cu_seqlens_cpu: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """All tensors ``[1, tokens, heads, ...]``; keys may have fewer heads than values."""
        assert xq_BLNK.shape[0] == 1
        tokens, heads = xv_BLNV.shape[1:3]
        ends = [0, tokens] if cu_seqlens is None else cu_seqlens.tolist()
        repeat = heads // xq_BLNK.shape[2]
        q, k = (_unit(x[0]).repeat_interleave(repeat, 1) for x in (xq_BLNK, xk_BLNK))
        out = gated_delta_rule(q, k, xv_BLNV[0], g_BLN[0], beta_BLN[0], ends)
        return out[None].to(xv_BLNV.dtype)


class DocumentDeltaNet(GatedDeltaNet):
    """As torchtitan's, with a convolution that needs no kernel; see ``DocumentDeltaKernel``."""

    @dataclass(kw_only=True, slots=True)
    class Config(GatedDeltaNet.Config):
        """No settings of its own."""

    def _causal_conv(
        self,
        x_BLD: torch.Tensor,
        conv: Any,
        cu_seqlens: torch.Tensor | None = None,
        cu_seqlens_cpu: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if cu_seqlens is None:
            plain: torch.Tensor = super()._causal_conv(x_BLD, conv)
            return plain
        return F.silu(causal_conv(x_BLD, conv.weight.squeeze(1), cu_seqlens))


def causal_conv(x: torch.Tensor, weight: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Each channel over the tokens before it in its document.

    Args:
        x: ``[1, tokens, channels]``.
        weight: ``[channels, width]``; the last column is of the token itself.
        starts: Where documents begin, and the end of the last.
    """
    places = torch.arange(x.shape[1], device=x.device)
    lengths = starts.diff()
    places = places - starts[:-1].repeat_interleave(lengths)
    out = x * weight[:, -1]
    for back in range(1, weight.shape[1]):
        earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
        inside = (places >= back)[:, None]
        out = out + torch.where(inside, earlier, 0) * weight[:, -1 - back]
    return out


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    ends: list[int],
) -> torch.Tensor:
    """The recurrence above, from zero in each document.

    Args:
        q: Queries of length 1, ``[tokens, heads, key size]``.
        k: Keys, likewise.
        v: Values, ``[tokens, heads, value size]``.
        g: Logarithms of the decay, ``[tokens, heads]``.
        beta: Gates, likewise.
        ends: Where documents begin, and the end of the last.
    Returns:
        ``[tokens, heads, value size]``, float32 or, if the values are, float64.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    table, counts = chunks(ends)
    index = torch.tensor(table, device=v.device)  # [chunks, CHUNK]; the number of tokens: padding
    q, k, v, g, beta = (
        _padded(x.to(dtype))[index].transpose(1, 2) for x in (q, k, v, g, beta)
    )  # [chunks, heads, CHUNK, ...]
    decay = g.cumsum(-1)
    between = (decay[..., :, None] - decay[..., None, :]).tril().exp().tril()
    weighted = k * beta[..., None]
    system = (weighted @ k.mT * between).tril(-1)
    own, memory = torch.linalg.solve_triangular(
        system,
        torch.cat([v * beta[..., None], weighted * decay.exp()[..., None]], dim=-1),
        upper=False,
        unitriangular=True,
    ).split([v.shape[-1], k.shape[-1]], dim=-1)
    last = decay[..., -1:]
    updates, states = _recurrence(
        own, memory, k * (last - decay).exp()[..., None], last[..., None].exp(), counts
    )
    out = (q * decay.exp()[..., None]) @ states + (q @ k.mT * between) @ updates
    flat = out.transpose(1, 2).reshape(-1, *out.shape[1:2], out.shape[-1])
    wanted = index.reshape(-1).argsort(stable=True)[: ends[-1]]
    scaled: torch.Tensor = flat[wanted] / math.sqrt(q.shape[-1])
    return scaled


def chunks(ends: list[int]) -> tuple[list[list[int]], list[int]]:
    """Documents cut into chunks, the first of all documents first, then the second ones.

    Documents come in order of length, so that those which have another chunk are the first ones.
    Worked example, for chunks of 2 tokens: documents of 1 and 3 tokens give [[1, 2], [0, -],
    [3, -]] and, of chunks in each turn, [2, 1].

    Returns:
        The tokens of each chunk, the number of all tokens standing for none; chunks of each turn.
    """
    nothing = ends[-1]
    documents = [range(a, b) for a, b in pairwise(ends)]
    documents.sort(key=len, reverse=True)
    table, counts = [], []
    for begin in range(0, len(documents[0]), CHUNK):
        parts = [list(one[begin : begin + CHUNK]) for one in documents if len(one) > begin]
        table += [part + [nothing] * (CHUNK - len(part)) for part in parts]
        counts.append(len(parts))
    return table, counts


def _recurrence(
    own: torch.Tensor,
    memory: torch.Tensor,
    keys: torch.Tensor,
    decays: torch.Tensor,
    counts: list[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The updates U of all chunks, and the state S_0 before each."""
    state = own.new_zeros(counts[0], own.shape[1], keys.shape[-1], own.shape[-1])
    updates, states = [], []
    turns = (x.split(counts) for x in (own, memory, keys, decays))
    for u, m, k, decay in zip(*turns, strict=True):
        state = state[: len(u)]
        update = u - m @ state
        updates.append(update)
        states.append(state)
        state = state * decay + k.mT @ update
    return torch.cat(updates), torch.cat(states)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Of length 1, as fla's kernel makes it."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def _padded(x: torch.Tensor) -> torch.Tensor:
    """With one row of zeros after the last token."""
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])

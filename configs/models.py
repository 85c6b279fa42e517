"""Changes to torchtitan's model specifications that the configurations here share."""

import dataclasses
from typing import Any

from titan_integration.attention.dense import DenseFlexAttention
from titan_integration.attention.documents import DocumentAttention
from titan_integration.upstream import FlexAttention, ModelSpec, ScaledDotProductAttention


def with_vocab(spec: ModelSpec, vocab_size: int) -> ModelSpec:
    """Give an untrained model another vocabulary size; changes and returns ``spec``."""
    model: Any = spec.model
    model.vocab_size = vocab_size
    holder, name = model, "tok_embeddings"
    if hasattr(model.tok_embeddings, "embedding"):  # with a norm behind it
        holder, name = model.tok_embeddings, "embedding"
    table = dataclasses.replace(getattr(holder, name), num_embeddings=vocab_size)
    setattr(holder, name, table)
    model.lm_head = dataclasses.replace(model.lm_head, out_features=vocab_size)
    return spec


def with_layers(spec: ModelSpec, num_layers: int) -> ModelSpec:
    """Keep the first layers only; changes and returns ``spec``."""
    model: Any = spec.model
    model.layers = model.layers[:num_layers]
    return spec


def with_sdpa(spec: ModelSpec) -> ModelSpec:
    """Causal attention without document masks, on any device: right for padded rows only."""
    return _with_attention(spec, ScaledDotProductAttention.Config)


def with_dense_flex(spec: ModelSpec) -> ModelSpec:
    """Document masks on any device, slowly: for masks that are more than causal per document."""
    return _with_attention(spec, DenseFlexAttention.Config)


def with_documents(spec: ModelSpec) -> ModelSpec:
    """Attention per document on any device, as fast as it can be: for packed rows on a CPU."""
    return _with_attention(spec, DocumentAttention.Config)


def _with_attention(spec: ModelSpec, config: type[Any]) -> ModelSpec:
    for _, _, parent, name in list(spec.model.traverse(FlexAttention.Config)):
        setattr(parent, str(name), config())
    return spec

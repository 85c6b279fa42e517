"""Llama 3: a small model that trains on two CPU cores, and the full-size fine-tune."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.training.trainer import OdbTrainer
from titan_integration.training.with_odb import with_odb
from titan_integration.upstream import (
    ComplexRoPE,
    Embedding,
    FlexAttention,
    Linear,
    Llama3Model,
    Llama3TransformerBlock,
    ModelSpec,
    RMSNorm,
    default_adamw,
    llama3_configs,
    llama3_registry,
    make_ffn_config,
    make_gqa_config,
)

from .debug import DEBUG_VOCAB, debug_config
from .models import with_dense_flex, with_documents, with_sdpa


def debug_odb() -> OdbTrainer.Config:
    """3 million parameters; one pass over a slice of the docstring corpus."""
    return debug_config(with_sdpa(small()))


def debug_flex() -> OdbTrainer.Config:
    """The same with document masks: for the packed layout, and for torchtitan's own batches."""
    return debug_config(with_dense_flex(small()))


def debug_packed() -> OdbTrainer.Config:
    """The same with attention per document: packed rows at the cost that they have on a GPU."""
    return debug_config(with_documents(small()))


def llama3_8b_sft() -> OdbTrainer.Config:
    """Full fine-tune of Llama 3.1 8B from its Hugging Face weights in ``hf_assets_path``."""
    config = with_odb(
        llama3_configs.llama3_8b(),
        model_spec=llama3_registry("8B", attn_backend="varlen"),
        optimizer=default_adamw(lr=1e-5),
        data=DataConfig(too_long="drop", odb=OdbConfig(token_budget=16384)),
    )
    config.checkpoint.initial_load_in_hf = True
    return config


def small(
    *, num_layers: int = 4, dim: int = 128, num_heads: int = 4, vocab_size: int = DEBUG_VOCAB
) -> ModelSpec:
    """A Llama 3 of that size, by default with the vocabulary of the docstring corpus."""
    spec = llama3_registry("debugmodel")
    matrix: dict[str, Callable[..., Any]] = {"weight": partial(nn.init.trunc_normal_, std=0.02)}
    head: dict[str, Callable[..., Any]] = {"weight": partial(nn.init.trunc_normal_, std=dim**-0.5)}
    # Torchtitan shards each place in its own way, by what it writes into the place's configuration.
    norm = partial(RMSNorm.Config, normalized_shape=dim, param_init={"weight": nn.init.ones_})
    rope = ComplexRoPE.Config(
        dim=dim // num_heads, max_seq_len=131072, theta=500000, scaling="llama"
    )
    spec.model = Llama3Model.Config(
        dim=dim,
        vocab_size=vocab_size,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab_size,
            embedding_dim=dim,
            param_init={"weight": partial(nn.init.normal_, std=1.0)},
        ),
        norm=norm(),
        lm_head=Linear.Config(in_features=dim, out_features=vocab_size, param_init=head),
        layers=[
            Llama3TransformerBlock.Config(
                attention_norm=norm(),
                ffn_norm=norm(),
                attention=make_gqa_config(
                    dim=dim,
                    n_heads=num_heads,
                    wqkv_param_init=matrix,
                    wo_param_init=matrix,
                    inner_attention=FlexAttention.Config(),
                    fuse_qkv=True,
                    rope=rope,
                ),
                feed_forward=make_ffn_config(
                    dim=dim, hidden_dim=3 * dim, w1_param_init=matrix, w2w3_param_init=matrix
                ),
            )
            for _ in range(num_layers)
        ],
    )
    return spec

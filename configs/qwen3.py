"""Qwen3: a small model for two CPU cores, and the full fine-tune of the 8B."""

from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.training.trainer import OdbTrainer
from titan_integration.training.with_odb import with_odb
from titan_integration.upstream import qwen3_configs, qwen3_registry

from .debug import DEBUG_VOCAB, debug_config
from .models import with_layers, with_sdpa, with_vocab


def debug_odb() -> OdbTrainer.Config:
    """Two layers of torchtitan's debug model."""
    spec = with_layers(qwen3_registry("debugmodel"), 2)
    config = debug_config(with_sdpa(with_vocab(spec, DEBUG_VOCAB)))
    config.training.seq_len = 4096  # the most this model takes
    config.data.too_long = "drop"
    return config


def qwen3_8b_sft() -> OdbTrainer.Config:
    """Full fine-tune of Qwen3 8B from its Hugging Face weights in ``hf_assets_path``."""
    config = with_odb(
        qwen3_configs.sft_qwen3_8b_math(),
        model_spec=qwen3_registry("8B", attn_backend="varlen"),
        data=DataConfig(too_long="drop", odb=OdbConfig(token_budget=16384)),
    )
    config.checkpoint.initial_load_in_hf = True
    return config

"""Qwen3.5 with pictures: a small model for two CPU cores, and the full fine-tune of the 9B."""

from configs.debug import DEBUG_VOCAB, debug_config
from configs.models import with_layers, with_vocab
from configs.vision import debug_pictures, for_cpu, with_flat_tower
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import (
    ChunkedLossWrapper,
    CrossEntropyLoss,
    ModelSpec,
    decoder_vocab_size,
    default_adamw,
    qwen3_5_registry,
)


def small() -> ModelSpec:
    """Four layers of torchtitan's debug model: three of linear attention, one of attention."""
    return with_vocab(with_layers(qwen3_5_registry("debugmodel"), 4), DEBUG_VOCAB)


def debug_odb() -> OdbTrainer.Config:
    """The small model with a tower without padding, on packed rows."""
    return debug_pictures(for_cpu(with_flat_tower(small())))


def debug_padded_tower() -> OdbTrainer.Config:
    """The same with torchtitan's own tower, which pads all pictures to the largest."""
    return debug_pictures(for_cpu(small(), masks=True))


def qwen3_5_9b_sft() -> OdbTrainer.Config:
    """Full fine-tune of Qwen3.5 9B from its Hugging Face weights in ``hf_assets_path``."""
    spec = with_flat_tower(qwen3_5_registry("9B", attn_backend="varlen"))
    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))
    config = debug_config(
        spec,
        hf_assets_path="./assets/hf/Qwen3.5-9B",
        dump_folder="outputs/qwen3_5_9b",
        loss=ChunkedLossWrapper.Config(loss_fn=loss),
        optimizer=default_adamw(lr=1e-5),
        data=DataConfig(too_long="drop", odb=OdbConfig(token_budget=16384)),
    )
    config.training.seq_len = 16384
    config.training.mixed_precision_param = "bfloat16"
    config.checkpoint.interval = 500
    config.checkpoint.initial_load_in_hf = True
    return config

"""Small models that take pictures, for runs of seconds."""

from configs.kimi_k2_7_vl import small as kimi
from configs.models import with_layers, with_vocab
from configs.muse_glimmer_vl import small as muse
from configs.qwen3_5_vl import small as qwen
from configs.vision import for_cpu, with_flat_tower
from tests.titan.tiny import tiny
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import ModelSpec

VOCAB = 640


def _config(spec: ModelSpec, *, masks: bool) -> OdbTrainer.Config:
    spec.model.vision_encoder.num_layers = 2  # type: ignore[attr-defined]
    config = tiny()
    config.model_spec = for_cpu(with_vocab(spec, VOCAB), masks=masks)
    config.data.min_pixels, config.data.max_pixels = 1_024, 16_384
    config.training.seq_len = 2048
    return config


def tiny_qwen() -> OdbTrainer.Config:
    """Linear attention and attention, a flat tower, packed rows."""
    return _config(with_flat_tower(qwen()), masks=False)


def tiny_qwen_padded_tower() -> OdbTrainer.Config:
    """The same with torchtitan's own tower."""
    return _config(qwen(), masks=True)


def tiny_muse() -> OdbTrainer.Config:
    """Windows in the tower and in the language model."""
    return _config(with_flat_tower(with_layers(muse(), 2)), masks=True)


def tiny_kimi() -> OdbTrainer.Config:
    """Experts."""
    return _config(with_flat_tower(kimi()), masks=True)

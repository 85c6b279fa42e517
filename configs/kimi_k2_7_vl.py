"""Kimi K2.7 with pictures: a small mixture of experts for two CPU cores."""

from configs.debug import DEBUG_VOCAB
from configs.models import with_layers, with_vocab
from configs.vision import debug_pictures, for_cpu, with_flat_tower
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import ModelSpec, kimi_k2_7_registry


def small() -> ModelSpec:
    """Two layers of torchtitan's debug model, the second one with experts."""
    return with_vocab(with_layers(kimi_k2_7_registry("debugmodel"), 2), DEBUG_VOCAB)


def debug_odb() -> OdbTrainer.Config:
    """The small model with a tower without padding, on packed rows."""
    return debug_pictures(for_cpu(with_flat_tower(small()), masks=True))


def debug_padded_tower() -> OdbTrainer.Config:
    """The same with torchtitan's own tower, which pads all pictures to the largest."""
    return debug_pictures(for_cpu(small(), masks=True))

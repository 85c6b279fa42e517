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
    """Packed rows, and a tower that pads nothing."""
    return debug_pictures(for_cpu(with_flat_tower(small()), masks=True))


def debug_padded_tower() -> OdbTrainer.Config:
    """With torchtitan's own tower: pictures padded to the largest of the batch."""
    return debug_pictures(for_cpu(small(), masks=True))

"""Muse Glimmer with pictures: a small model for two CPU cores."""

from configs.debug import DEBUG_VOCAB
from configs.models import with_layers, with_vocab
from configs.vision import debug_pictures, for_cpu, with_flat_tower
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import ModelSpec, muse_glimmer_registry


def small() -> ModelSpec:
    """Four layers of torchtitan's debug model, three of them with a window."""
    return with_vocab(with_layers(muse_glimmer_registry("debugmodel_mm"), 4), DEBUG_VOCAB)


def debug_odb() -> OdbTrainer.Config:
    """The small model with a tower without padding, on packed rows."""
    return debug_pictures(for_cpu(with_flat_tower(small()), masks=True))


def debug_padded_tower() -> OdbTrainer.Config:
    """The same with torchtitan's own tower, which pads all pictures to the largest."""
    return debug_pictures(for_cpu(small(), masks=True))

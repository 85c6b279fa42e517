"""DeepSeek V3: a small mixture of experts for two CPU cores."""

from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import deepseek_v3_registry

from .debug import DEBUG_VOCAB, debug_config
from .models import with_layers, with_sdpa, with_vocab


def debug_odb() -> OdbTrainer.Config:
    """Two layers of torchtitan's debug model, one of them with experts."""
    spec = with_layers(deepseek_v3_registry("debugmodel"), 2)
    return debug_config(with_sdpa(with_vocab(spec, DEBUG_VOCAB)))

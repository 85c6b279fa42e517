"""DeepSeek V3: a small mixture of experts for two CPU cores."""

from configs.debug import DEBUG_VOCAB, debug_config
from configs.models import with_layers, with_sdpa, with_vocab
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import deepseek_v3_registry


def debug_odb() -> OdbTrainer.Config:
    """Two layers of torchtitan's debug model, one of them with experts."""
    spec = with_layers(deepseek_v3_registry("debugmodel"), 2)
    return debug_config(with_sdpa(with_vocab(spec, DEBUG_VOCAB)))

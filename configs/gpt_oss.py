"""gpt-oss: a small mixture of experts with attention sinks and sliding windows, for two cores."""

import dataclasses
from typing import Any

from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import GptOssGroupedExperts, gpt_oss_registry

from .debug import DEBUG_VOCAB, debug_config
from .models import with_dense_flex, with_layers, with_vocab


def debug_odb() -> OdbTrainer.Config:
    """Two layers of torchtitan's debug model, one with a sliding window; with narrow experts."""
    spec = with_layers(gpt_oss_registry("debugmodel", attn_backend="flex"), 2)
    experts: Any
    for _, experts, _, _ in spec.model.traverse(GptOssGroupedExperts.Config):
        experts.hidden_dim = 128  # of 2880: a CPU takes seconds a sample for those, in bfloat16
    config = debug_config(with_dense_flex(with_vocab(spec, DEBUG_VOCAB)))
    # Its experts multiply in bfloat16 whatever the model's type is.
    config.training = dataclasses.replace(config.training, mixed_precision_param="bfloat16")
    return config

"""Variants of the tiny configuration in which something goes wrong."""

from configs.llama3 import small
from configs.models import with_sdpa
from tests.titan.tiny import VOCAB, tiny
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import default_adamw


def wider() -> OdbTrainer.Config:
    """Another model."""
    config = tiny()
    config.model_spec = with_sdpa(small(num_layers=1, dim=64, num_heads=2, vocab_size=VOCAB))
    return config


def explodes() -> OdbTrainer.Config:
    """A learning rate that leaves no finite number after a few steps."""
    config = tiny()
    config.optimizer = default_adamw(lr=1e30)
    config.metrics.log_freq = 100  # torchtitan looks at the loss of logged steps only
    config.checkpoint.interval = 1
    return config


def greedy() -> OdbTrainer.Config:
    """A vocabulary so large that a batch of 8192 tokens needs a gigabyte for its logits."""
    config = tiny()
    config.model_spec = with_sdpa(small(num_layers=1, dim=32, num_heads=2, vocab_size=32768))
    return config


def small_tasks(limit: int) -> None:
    """No configuration: it takes an argument."""

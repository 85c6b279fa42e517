"""A model of some ten thousand parameters, for runs of seconds."""

from configs.debug import KEEP_ALL, debug_config
from configs.llama3 import small
from configs.models import with_dense_flex, with_documents, with_sdpa
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.training.metrics import OdbMetricsProcessor
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import CheckpointManager, FlexAttention

VOCAB = 512


def tiny() -> OdbTrainer.Config:
    """Every step is logged; a checkpoint every 3 steps, all kept."""
    return debug_config(
        with_sdpa(small(num_layers=1, dim=32, num_heads=2, vocab_size=VOCAB)),
        data=DataConfig(odb=OdbConfig(token_budget=1024, window=64)),
        metrics=OdbMetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=True, interval=3, keep_latest_k=0, **KEEP_ALL),
    )


def tiny_documents() -> OdbTrainer.Config:
    """The same with attention per document, which asks for packed rows."""
    config = tiny()
    spec = small(num_layers=2, dim=32, num_heads=2, vocab_size=VOCAB)
    config.model_spec = with_documents(spec)
    return config


def tiny_flex() -> OdbTrainer.Config:
    """The same with document masks."""
    config = tiny()
    config.model_spec = with_dense_flex(small(num_layers=1, dim=32, num_heads=2, vocab_size=VOCAB))
    assert any(config.model_spec.model.traverse(FlexAttention.Config))
    return config

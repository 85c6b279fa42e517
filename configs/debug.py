"""What the small configurations have in common."""

from typing import Any

from titan_integration.data.config import UNLIMITED_STEPS, DataConfig, OdbConfig
from titan_integration.training.metrics import OdbMetricsProcessor
from titan_integration.training.schedule import SampleLRSchedulers
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import (
    CheckpointManager,
    CrossEntropyLoss,
    DebugConfig,
    ModelSpec,
    TrainingConfig,
    decoder_vocab_size,
    default_adamw,
)

KEEP_ALL: dict[str, Any] = {  # of the training state, at the end and at the start
    "last_save_model_only": False,
    "initial_load_model_only": False,
}
DEBUG_VOCAB = 8192  # tokens, of the tokenizer that tools/corpus.py trains


def debug_config(spec: ModelSpec, **changes: Any) -> OdbTrainer.Config:
    """A run of minutes on two CPU cores: float32, one seed, a checkpoint every 20 steps."""
    settings: dict[str, Any] = {
        "model_spec": spec,
        "hf_assets_path": "outputs/corpus/tokenizer",
        "dump_folder": "outputs/debug",
        "data": DataConfig(
            max_samples=5000,
            path=["outputs/corpus/corpus.jsonl"],
            odb=OdbConfig(token_budget=4096, window=1024),
        ),
        "loss": CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        "optimizer": default_adamw(lr=2e-3),
        "lr_scheduler": SampleLRSchedulers.Config(warmup=0.05),
        "training": TrainingConfig(
            local_batch_size=1,
            seq_len=8192,
            steps=UNLIMITED_STEPS,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
        ),
        "metrics": OdbMetricsProcessor.Config(log_freq=5),
        "checkpoint": CheckpointManager.Config(
            enable=True, interval=20, keep_latest_k=2, **KEEP_ALL
        ),
        "activation_checkpoint": None,
        "debug": DebugConfig(seed=0, enable_structured_logging=False),
    }
    return OdbTrainer.Config(**{**settings, **changes})

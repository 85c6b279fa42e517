"""torchtitan's trainer for the benchmark: the debug model, and no loader of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed.fsdp import FSDPModule

from configs.debug import debug_config
from configs.llama3 import small
from configs.models import with_sdpa
from titan_integration.data.config import DataConfig
from titan_integration.upstream import (
    BaseDataLoader,
    CheckpointManager,
    LRSchedulersContainer,
    MetricsProcessor,
    Trainer,
    TrainingConfig,
)
from tools.bench.columns.model import SHAPES
from tools.bench.measure.settings import Settings


class NoLoader(BaseDataLoader):
    """Stands where torchtitan builds a loader; the columns come later."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def build(settings: Settings, dump: str) -> Trainer:
    """The debug model of ``configs`` in torchtitan's own trainer, without a loader."""
    shape = SHAPES[settings.model]
    config = debug_config(
        with_sdpa(
            small(
                num_layers=shape.layers,
                dim=shape.dim,
                num_heads=shape.heads,
                vocab_size=shape.vocab,
            )
        ),
        dump_folder=dump,
        data=DataConfig(),
        dataloader=NoLoader.Config(),
        training=TrainingConfig(
            local_batch_size=1,
            seq_len=settings.budget,
            steps=2**31 - 1,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
        ),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=1),
        metrics=MetricsProcessor.Config(log_freq=2**31 - 1),
        checkpoint=CheckpointManager.Config(enable=False),
    )
    trainer = Trainer(config)
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it sums
    return trainer

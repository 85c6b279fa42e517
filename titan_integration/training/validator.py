"""torchtitan's Validator on every held-out row, once a validation."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from titan_integration.data.audit import AuditLog
from titan_integration.data.checks.cache import Checked
from titan_integration.data.config import DataConfig
from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.upstream import Validator
from titan_integration.vision.inputs import TowerInputs, tower_inputs


class OdbValidator(Validator):
    """Validator that checks the held-out rows at start and ends each loader after its use.

    All ranks take the same number of steps, IDLE ones included, so that ``steps=-1`` (all rows)
    cannot hang. Relies on torchtitan 0.3 for: ``validate`` calling ``dl_config.build`` once, and
    ``post_dataloading_process`` once a batch, right after drawing it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        """The dataloader is made from the held-out rows; without any, it is torchtitan's."""

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._audit: AuditLog | None = None
        self._tower_inputs: TowerInputs | None = None
        self._builder = _KeepsLoader(self.dl_config)
        if not isinstance(self.dl_config, OdbDataLoader.Config):
            return
        self.dl_config: Any = self._builder
        prefix = self._builder.config.data.audit_log
        if prefix is not None:
            self._audit = AuditLog(prefix, dist.get_rank())
        self._builder.build(
            dp_world_size=self.dp_world_size,
            dp_rank=self.dp_rank,
            tokenizer=self.tokenizer,
            seq_len=self.seq_len,
        )
        self._builder.check()
        assert self._builder.loader is not None
        self._tower_inputs = tower_inputs(self._builder.loader)
        self._close_loader()

    def validate(self, model_parts: list[nn.Module], step: int) -> None:
        """As torchtitan's; the loader's threads and worker processes are gone afterwards."""
        self._step = step
        try:
            super().validate(model_parts, step)
        finally:
            self._close_loader()

    def post_dataloading_process(
        self,
        input_dict: dict[str, torch.Tensor],
        labels: torch.Tensor,
        model_parts: list[nn.Module],
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """As torchtitan's; notes the batch's samples, and counts real tokens only."""
        loader = self._builder.loader
        if loader is not None and loader.info is not None:
            padding = labels.numel() - (loader.info.num_tokens - loader.room)
            self.metrics_processor.ntokens_since_last_log -= padding
            if self._audit is not None:
                self._audit.add(self._step, loader.info)
        if self._tower_inputs is not None:
            input_dict = self._tower_inputs(input_dict)
        processed: tuple[torch.Tensor, torch.Tensor, dict[str, Any]]
        processed = super().post_dataloading_process(input_dict, labels, model_parts)
        return processed

    def _close_loader(self) -> None:
        if self._builder.loader is not None:
            self._builder.loader.close()
            self._builder.loader = None


class _KeepsLoader:
    """Builds as the configuration does, and keeps what it built, which ``validate`` does not."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.loader: OdbDataLoader | None = None
        self._checked: Checked | None = None

    def build(self, **kwargs: Any) -> OdbDataLoader:
        loader: OdbDataLoader = self.config.build(**kwargs)
        if self._checked is not None:
            loader.use(self._checked)
        self.loader = loader
        return loader

    def check(self) -> None:
        """Check the rows, once for all loaders."""
        if self.loader is not None:
            self.loader.check()
            self._checked = self.loader.checked


def validation_data(data: DataConfig) -> DataConfig:
    """All held-out rows, once, in file order; batched as the training rows."""
    prefix = data.audit_log
    if data.validation_path:
        data = replace(
            data,
            path=data.validation_path,
            mix=[],
            streaming=False,
            split=data.validation_split,
            max_samples=None,
        )
    return replace(
        data,
        epochs=1,
        sample_quota=None,
        shuffle=False,
        audit_log=None if prefix is None else f"{prefix}.validation",
        odb=replace(data.odb, join=True),
    )

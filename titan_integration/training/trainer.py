"""torchtitan's Trainer on ODB batches: exact loss, no sample lost at the end, resumable."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from titan_integration import cpu
from titan_integration.data.audit import AuditLog
from titan_integration.data.config import UNLIMITED_STEPS, DataConfig
from titan_integration.data.dataloader import OdbDataLoader, TitanBatch
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.stock import StockDataLoader
from titan_integration.errors import UserError
from titan_integration.run.failures import explain, first_line
from titan_integration.run.guard import Guard, make_writable
from titan_integration.source_loss import SourceLoss
from titan_integration.training.announce import announce
from titan_integration.training.batches import cost_of, describe_batches
from titan_integration.training.ending import sum_up, why_nothing_is_left
from titan_integration.training.metrics import OdbMetricsProcessor
from titan_integration.training.safe_steps import SafeSteps
from titan_integration.training.schedule import SampleLRSchedulers
from titan_integration.training.supported import (
    check_supported,
    default_checkpoint,
    default_training,
    loader_config,
)
from titan_integration.training.validator import OdbValidator, validation_data
from titan_integration.upstream import (
    BaseCheckpointManager,
    HuggingFaceTokenizer,
    LRSchedulersContainer,
    MetricsProcessor,
    Trainer,
    TrainingConfig,
    Validator,
)
from titan_integration.vision.inputs import TowerInputs, tower_inputs
from titan_integration.vision.parts import freeze

logger = logging.getLogger(__name__)


class OdbTrainer(Trainer):
    """Trainer with a ``data`` section. With ODB off, every override leaves it to torchtitan.

    Relies on torchtitan 0.3 for: ``train_step`` drawing ``gradient_accumulation_steps`` batches
    from the iterator it is given; a loop that asks ``should_continue_training`` before a step and
    saves the last step where ``step == config.training.steps`` after it; ``ntokens_seen`` growing
    by a batch's tokens in ``post_dataloading_process``, ``ntokens_since_last_log`` in
    ``batch_generator``; and losses as token sums over the valid tokens of all ranks.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        data: DataConfig = field(default_factory=DataConfig)
        metrics: MetricsProcessor.Config = field(default_factory=OdbMetricsProcessor.Config)
        lr_scheduler: LRSchedulersContainer.Config = field(
            default_factory=SampleLRSchedulers.Config
        )
        training: TrainingConfig = field(default_factory=default_training)
        checkpoint: BaseCheckpointManager.Config = field(default_factory=default_checkpoint)
        validator: Validator.Config = field(default_factory=OdbValidator.Config)
        freeze: list[str] = field(default_factory=list)
        """Parts that stay as they are: tower, projector or language_model, of a model that takes
        pictures (a,b)."""

        def __post_init__(self) -> None:
            Trainer.Config.__post_init__(self)
            if type(self.tokenizer) is HuggingFaceTokenizer.Config:
                self.tokenizer = ChatTokenizer.Config()  # Takes any chat template.
            if self.data.has_rows and self.data.odb.enable:
                self.dataloader = loader_config(self, self.data, "train")
            elif self.data.has_rows:
                self.dataloader = StockDataLoader.Config(data=self.data)
            if self.data.has_validation:
                purpose = "validation" if self.data.validation_path else "held_out"
                held_out = validation_data(self.data)
                self.validator.dataloader = loader_config(self, held_out, purpose)

        def validate(self) -> None:
            """Raise UserError on what cannot run; before any process group exists."""
            self.data.validate()
            check_supported(self, self.data)

    config: Config
    odb: OdbDataLoader | None
    nothing_left: bool
    steps: SafeSteps
    tower_inputs: TowerInputs | None

    def __init__(self, config: Config) -> None:
        parts: list[Any] = [config.dataloader, config.validator.dataloader]
        for part in parts:
            if isinstance(part, OdbDataLoader.Config):
                part.cost = cost_of(config, part.data)
        self.guard: Guard | None = None
        try:
            super().__init__(config)
        except Exception as error:
            self._leave_folder()
            if explain(error) is not None:
                raise
            raise UserError(f"the trainer cannot be built: {first_line(error)}") from error
        assert self.guard is not None
        if self.device.type == "cpu":
            cpu.sum_without_scaling(self.model_parts)
        self.odb = self.dataloader if isinstance(self.dataloader, OdbDataLoader) else None
        self.tower_inputs = tower_inputs(self.odb)
        freeze(self.model_parts, config.freeze)
        self.steps = SafeSteps(self.guard, config, self.odb)
        self.guard.protect(self.checkpointer, self.steps.before_save)
        self.resumed_from: int | None = None
        self.audit: AuditLog | None = None
        self.nothing_left = False
        if self.odb is not None:
            self._prepare(self.odb)

    def init_distributed(self) -> Any:
        """As torchtitan's; then the folder is locked and a checkpoint chosen, before any work."""
        make_writable(Path(self.config.dump_folder))
        dims = super().init_distributed()
        data = self.config.data
        self.guard = Guard(
            self.config.dump_folder,
            self.config.checkpoint,
            stop_within_s=data.stop_within_s,
            stop_after_s=data.stop_after_s,
        )
        return dims

    def train(self) -> None:
        """Train to the end of the data, of ``training.steps`` or of the quota; then sum up."""
        try:
            super().train()
            if self.guard is not None and self._more_to_do():
                self.guard.raise_if_stopped(self.step)
            if self.odb is not None and not self.nothing_left:
                self._sum_up(self.odb)
        finally:
            # Also on KeyboardInterrupt, where torchtitan's main does not close the trainer.
            self._release()

    def close(self) -> None:
        self._release()
        super().close()
        self._leave_folder()

    def batch_generator(self, data_iterable: Any) -> Iterator[TitanBatch]:
        """As torchtitan's; called once, after loading, so the run's starting point is known."""
        if self.odb is not None:
            self._begin(self.odb)
        if self.guard is not None:
            self.guard.begin()
        return super().batch_generator(data_iterable)

    def should_continue_training(self) -> bool:
        return self._more_to_do() and not (self.guard is not None and self.guard.stopped)

    def _more_to_do(self) -> bool:
        more = self.odb is None or not self.odb.exhausted
        return more and super().should_continue_training()

    def train_step(self, data_iterator: Iterator[TitanBatch]) -> None:
        """Draw the step's batches first, to know its samples, then let torchtitan train on them."""
        train_step = super().train_step
        self.steps.health.begin_step(self.step)
        if self.odb is None:
            self.steps.run(lambda: train_step(data_iterator), [])
            return
        before = self.odb.totals.samples
        batches = self._draw(self.odb, data_iterator)
        if self.schedule.config.unit == "steps":
            self.schedule.advance(self.step - 1, self.step)
        else:
            self.schedule.advance(before, self.odb.totals.samples)
        self.steps.run(lambda: train_step(iter(batches)), batches)
        self.source_loss.end_step()
        self.meter.end_step()
        if self.odb.exhausted:
            self.config.training.steps = self.step  # the loop's last save, resumable

    def post_dataloading_process(
        self, input_dict: dict[str, Any], labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """As torchtitan's; the patches become what the tower takes, on its device."""
        if self.tower_inputs is not None:
            input_dict = self.tower_inputs(input_dict)
        made: tuple[torch.Tensor, torch.Tensor, dict[str, Any]]
        made = super().post_dataloading_process(input_dict, labels)
        return made

    def forward_backward_step(self, **kwargs: Any) -> torch.Tensor:
        """As torchtitan's; notes the loss."""
        if self.odb is not None:
            self.source_loss.begin_microbatch()
        loss = super().forward_backward_step(**kwargs)
        self.steps.health.note_loss(loss)
        if self.odb is not None and self.meter.should_log(self.step):
            if self.parallel_dims.pp_enabled:
                # Only the last stage has the loss, the others have -1, and rank 0 logs.
                loss = loss.detach().clone()
                stages = self.parallel_dims.get_mesh("pp").get_group()
                dist.all_reduce(loss, dist.ReduceOp.MAX, group=stages)
            self.meter.add_loss(loss.detach())
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Torchtitan's two values; the token count is of one rank there, of all ranks here."""
        state = super().state_dict()
        if self.odb is not None:
            state["ntokens_seen"] = self.odb.totals.tokens
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.resumed_from = self.step
        if self.odb is not None and self.odb.dp_rank != 0:
            self.ntokens_seen = 0  # torchtitan logs the sum over ranks

    def _prepare(self, odb: OdbDataLoader) -> None:
        odb.check()
        odb.note_inputs()
        self._plan(odb)
        self.source_loss = SourceLoss(odb.rows.names)
        self.source_loss.attach(self.loss_fn)
        if self.config.data.audit_log is not None:
            self.audit = AuditLog(self.config.data.audit_log, dist.get_rank())

    def _plan(self, odb: OdbDataLoader) -> None:
        """The length of the run, as far as is known; a resume may change it."""
        data = self.config.data
        assert isinstance(self.lr_schedulers, SampleLRSchedulers)
        assert isinstance(self.metrics_processor, OdbMetricsProcessor)
        self.schedule, self.meter = self.lr_schedulers, self.metrics_processor
        whole = None
        if data.num_epochs is not None and not data.streaming:
            whole = odb.epoch_samples.expected(data.num_epochs, odb.totals.epochs_done)
        self.samples_total = whole
        goals = [n for n in (whole, data.sample_quota) if n is not None]
        steps = self.config.training.steps
        self.schedule.shape = self.schedule.config.shape(
            total_samples=min(goals, default=None),
            total_steps=None if steps == UNLIMITED_STEPS else steps,
        )

    def _begin(self, odb: OdbDataLoader) -> None:
        self.started_at_s, self.started_tokens = time.perf_counter(), odb.totals.tokens
        self._plan(odb)
        self.nothing_left = not self._more_to_do()
        if self.nothing_left:
            epochs, steps = self.config.data.num_epochs, self.config.training.steps
            logger.info(why_nothing_is_left(odb, epochs, step=self.step, steps=steps))
        elif dist.get_rank() == 0:
            logger.info(describe_batches(self.config, self.config.data, odb.config))
            announce(
                self.config,
                odb,
                parameters=sum(p.numel() for part in self.model_parts for p in part.parameters()),
                step=self.step,
                accumulation=self.gradient_accumulation_steps,
            )
        quota = self.config.data.sample_quota
        self.meter.follow(
            odb, rows=self.samples_total, quota=quota, step=self.step, source_loss=self.source_loss
        )
        if self.audit is not None:
            self.audit.start(self.step, odb.dp_rank, odb.dp_world_size)

    def _draw(self, odb: OdbDataLoader, data_iterator: Iterator[TitanBatch]) -> list[TitanBatch]:
        """The step's microbatches; where the data ends among them, IDLE ones take the rest."""
        batches: list[TitanBatch] = []
        sources: list[torch.Tensor] = []
        num_loss_tokens = total_loss_tokens = padding = 0
        for _ in range(self.gradient_accumulation_steps * self.num_pipeline_parallel_microbatches):
            if odb.exhausted:
                batches.append(odb.filler())
                padding += batches[-1][1].numel()
                self.meter.ntokens_since_last_log += batches[-1][1].numel()
                continue
            batches.append(next(data_iterator))
            info = odb.info
            assert info is not None
            if odb.sources is not None:
                sources.append(odb.sources)
            num_loss_tokens += info.num_loss_tokens
            total_loss_tokens += info.total_num_loss_tokens
            padding += batches[-1][1].numel() - (info.num_tokens - odb.room)
            if not info.idle:
                self.steps.health.note_samples(view.index for view in info.views)
            if self.audit is not None:
                self.audit.add(self.step, info)
        self.source_loss.begin_step(sources if self.meter.should_log(self.step) else [])
        self.meter.begin_step(num_loss_tokens=num_loss_tokens, total_loss_tokens=total_loss_tokens)
        self.meter.ntokens_since_last_log -= padding
        self.ntokens_seen -= padding
        return batches

    def _sum_up(self, odb: OdbDataLoader) -> None:
        sum_up(
            self.config,
            odb,
            samples_total=self.samples_total,
            steps=self.step,
            resumed_from=self.resumed_from,
            wall_s=time.perf_counter() - self.started_at_s,
            tokens_before=self.started_tokens,
            source_losses=self.meter.source_losses,
            sheet=None if self.tower_inputs is None else self.tower_inputs.sheet,
        )

    def _leave_folder(self) -> None:
        if self.guard is not None:
            self.guard.close()

    def _release(self) -> None:
        if self.odb is not None:
            self.odb.close()
        if self.audit is not None:
            self.audit.close()

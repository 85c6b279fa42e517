"""torchtitan's Trainer on ODB batches: exact loss, no sample lost at the end, resumable."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from titan_integration.data.audit import AuditLog
from titan_integration.data.config import UNLIMITED_STEPS, DataConfig
from titan_integration.data.dataloader import OdbDataLoader, TitanBatch
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.stock import StockDataLoader
from titan_integration.data.stream import OdbStreamLoader
from titan_integration.errors import UserError
from titan_integration.process_groups import all_max, on_rank_zero
from titan_integration.run.failures import explain, first_line, is_out_of_memory
from titan_integration.run.guard import Guard, make_writable
from titan_integration.training.announce import announce
from titan_integration.training.batches import cost_of, describe_batches, layout_of
from titan_integration.training.health import Health, Memory, not_finite
from titan_integration.training.metrics import OdbMetricsProcessor
from titan_integration.training.schedule import SampleLRSchedulers
from titan_integration.training.summary import Summary, coverage
from titan_integration.training.supported import (
    check_supported,
    check_tokenizer_folder,
    length_multiple,
)
from titan_integration.training.validator import OdbValidator, validation_data
from titan_integration.upstream import (
    LOSS_NOT_FINITE,
    BaseCheckpointManager,
    CheckpointManager,
    HuggingFaceTokenizer,
    LRSchedulersContainer,
    MetricsProcessor,
    Trainer,
    TrainingConfig,
    Validator,
    watch_grad_norm,
)

logger = logging.getLogger(__name__)


def _training() -> TrainingConfig:
    return TrainingConfig(local_batch_size=1, steps=UNLIMITED_STEPS, disable_cuda_graphs=True)


def _checkpoint() -> CheckpointManager.Config:
    return CheckpointManager.Config(
        enable=True, interval=500, last_save_model_only=False, initial_load_model_only=False
    )


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
        training: TrainingConfig = field(default_factory=_training)
        checkpoint: BaseCheckpointManager.Config = field(default_factory=_checkpoint)
        validator: Validator.Config = field(default_factory=OdbValidator.Config)

        def __post_init__(self) -> None:
            Trainer.Config.__post_init__(self)
            if type(self.tokenizer) is HuggingFaceTokenizer.Config:
                self.tokenizer = ChatTokenizer.Config()  # Takes any chat template.
            if self.data.has_rows and self.data.odb.enable:
                self.dataloader = self._odb_loader(self.data, "train")
            elif self.data.has_rows:
                self.dataloader = StockDataLoader.Config(data=self.data)
            if self.data.has_validation:
                purpose = "validation" if self.data.validation_path else "held_out"
                self.validator.dataloader = self._odb_loader(validation_data(self.data), purpose)

        def validate(self) -> None:
            """Raise UserError on what cannot run; before any process group exists."""
            self.data.validate()
            if self.data.has_rows:
                check_tokenizer_folder(self.hf_assets_path)
            check_supported(self, self.data)

        def _odb_loader(self, data: DataConfig, purpose: str) -> OdbDataLoader.Config:
            model = self.model_spec.model if self.model_spec is not None else None
            kind = OdbStreamLoader if data.streaming else OdbDataLoader
            return kind.Config(
                data=replace(data, odb=replace(data.odb, layout=layout_of(self, data))),
                pad_to_multiple_of=length_multiple(self, data.odb.pad_to_multiple_of),
                vocab_size=getattr(model, "vocab_size", None),
                purpose=purpose,
                check_folder=str(Path(self.dump_folder) / "row_checks"),
            )

    config: Config
    odb: OdbDataLoader | None
    nothing_left: bool

    def __init__(self, config: Config) -> None:
        parts: list[Any] = [config.dataloader, config.validator.dataloader]
        for part in parts:
            if isinstance(part, OdbDataLoader.Config):
                part.cost = cost_of(config, part.data)
        self.guard: Guard | None = None
        self.health, self.memory = Health(), Memory()
        try:
            super().__init__(config)
        except Exception as error:
            self._leave_folder()
            if explain(error) is not None:
                raise
            raise UserError(f"the trainer cannot be built: {first_line(error)}") from error
        assert self.guard is not None
        self.guard.protect(self.checkpointer, self._before_save)
        watch_grad_norm(self.health.note_norm)
        if self.device.type == "cpu":
            for module in self.model_parts:
                for part in module.modules():
                    if isinstance(part, FSDPModule):
                        # gloo cannot scale while it sums, which FSDP asks of it otherwise.
                        part.set_force_sum_reduction_for_comms(True)
        self.odb = self.dataloader if isinstance(self.dataloader, OdbDataLoader) else None
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
        self.health.begin_step(self.step)
        if self.odb is None:
            self._train_on(data_iterator, [])
            return
        before = self.odb.totals.samples
        batches = self._draw(self.odb, data_iterator)
        if self.schedule.config.unit == "steps":
            self.schedule.advance(self.step - 1, self.step)
        else:
            self.schedule.advance(before, self.odb.totals.samples)
        self._train_on(iter(batches), batches)
        self.memory.note(batches)
        self.meter.end_step()
        if self.odb.exhausted:
            self.config.training.steps = self.step  # the loop's last save, resumable

    def _train_on(self, batches: Iterator[TitanBatch], drawn: list[TitanBatch]) -> None:
        """torchtitan's step; afterwards all ranks agree on whether it was good, and on a stop."""
        assert self.guard is not None
        bad = False
        try:
            super().train_step(batches)
        except RuntimeError as error:
            if is_out_of_memory(error) and drawn:
                budget = self.config.data.odb.token_budget
                raise self.memory.explain(error, drawn, budget) from error
            bad = str(error).startswith(LOSS_NOT_FINITE)  # on all ranks alike
            if not bad:
                raise
        if self.guard.end_step(bad or self.health.end_step()):
            raise self._not_finite()
        if self.guard.stopped:
            self.config.validator.enable = False  # it may take longer than there is time

    def _before_save(self) -> None:
        """What is not finite, or of data that is gone, must not become the newest checkpoint."""
        assert self.guard is not None
        if all_max([int(self.health.is_bad_now())], self.guard.group)[0]:
            raise self._not_finite()
        inputs = self.odb.inputs if self.odb is not None else None
        if inputs is not None:
            on_rank_zero(inputs.look_at_files, self.guard.group)

    def _not_finite(self) -> UserError:
        assert self.guard is not None
        return not_finite(self.health, self.odb, self.guard.group, self.config.dump_folder)

    def forward_backward_step(self, **kwargs: Any) -> torch.Tensor:
        """As torchtitan's; notes the loss."""
        loss = super().forward_backward_step(**kwargs)
        self.health.note_loss(loss)
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
        if self.config.data.audit_log is not None:
            self.audit = AuditLog(self.config.data.audit_log, dist.get_rank())

    def _plan(self, odb: OdbDataLoader) -> None:
        """The length of the run, as far as is known; a resume may change it."""
        data = self.config.data
        logger.info(describe_batches(self.config, data, odb.config))
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
            logger.info(self._why_nothing_is_left(odb))
        elif dist.get_rank() == 0:
            announce(
                self.config,
                odb,
                parameters=sum(p.numel() for part in self.model_parts for p in part.parameters()),
                step=self.step,
                accumulation=self.gradient_accumulation_steps,
            )
        quota = self.config.data.sample_quota
        self.meter.follow(odb, rows=self.samples_total, quota=quota, step=self.step)
        if self.audit is not None:
            self.audit.start(self.step, odb.dp_rank, odb.dp_world_size)

    def _why_nothing_is_left(self, odb: OdbDataLoader) -> str:
        """The reason, for a run that was finished. Raises UserError where less was asked for."""
        epochs, steps = self.config.data.num_epochs, self.config.training.steps
        if epochs is not None and odb.epochs_begun > epochs:
            raise UserError(
                f"the run has begun epoch {odb.epochs_begun}, beyond data.epochs {epochs}; raise "
                "--data.epochs, or set another --dump_folder"
            )
        if self.step > steps:
            raise UserError(
                f"the run is at step {self.step}, beyond training.steps {steps}; raise "
                "--training.steps, or load an earlier one with --checkpoint.load_step"
            )
        return (
            f"Nothing left to train: the run was finished at step {self.step} with "
            f"{odb.totals.samples:,} samples; raise --data.epochs, --data.sample_quota or "
            "--training.steps to go on"
        )

    def _draw(self, odb: OdbDataLoader, data_iterator: Iterator[TitanBatch]) -> list[TitanBatch]:
        """The step's microbatches; where the data ends among them, IDLE ones take the rest."""
        batches: list[TitanBatch] = []
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
            num_loss_tokens += info.num_loss_tokens
            total_loss_tokens += info.total_num_loss_tokens
            padding += batches[-1][1].numel() - info.num_tokens
            if not info.idle:
                self.health.note_samples(view.index for view in info.views)
            if self.audit is not None:
                self.audit.add(self.step, info)
        self.meter.begin_step(num_loss_tokens=num_loss_tokens, total_loss_tokens=total_loss_tokens)
        self.meter.ntokens_since_last_log -= padding
        self.ntokens_seen -= padding
        return batches

    def _sum_up(self, odb: OdbDataLoader) -> None:
        totals = odb.merged_totals()
        data, wall_s = self.config.data, time.perf_counter() - self.started_at_s
        summary = Summary(
            samples_total=self.samples_total,
            samples_emitted=totals.samples,
            samples_dropped=totals.num_dropped,
            dropped_by_reason=totals.dropped,
            coverage=coverage(totals, self.samples_total, ended_by=self._ended_by(odb)),
            steps=self.step,
            idle_steps=totals.idle_steps,
            padding_ratio=totals.padding_ratio,
            real_tokens=totals.tokens,
            padded_tokens=totals.padded_tokens,
            real_tokens_per_s=(totals.tokens - self.started_tokens) / wall_s,
            wall_s=wall_s,
            world_size=odb.dp_world_size,
            resumed_from=self.resumed_from,
        )
        if dist.get_rank() == 0:
            path = summary.write(self.config.dump_folder)
            logger.info(f"{summary.line()}; see {path}")
        if data.odb.join and summary.coverage.startswith("wrong"):
            raise RuntimeError(f"coverage is {summary.coverage}")

    def _ended_by(self, odb: OdbDataLoader) -> str:
        quota = self.config.data.sample_quota
        if not odb.exhausted:
            return "training.steps"
        filled = quota is not None and odb.totals.samples >= quota
        return "data.sample_quota" if filled else "data.odb.no-join"

    def _leave_folder(self) -> None:
        if self.guard is not None:
            self.guard.close()

    def _release(self) -> None:
        if self.odb is not None:
            self.odb.close()
        if self.audit is not None:
            self.audit.close()

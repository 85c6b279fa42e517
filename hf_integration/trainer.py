"""The mixin that gives any Trainer online dynamic batching."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hf_integration.arguments import OdbArguments
from hf_integration.data import checkpoint
from hf_integration.data.feed import Feed
from hf_integration.data.loader import Length
from hf_integration.data.pictures import PATCHES, PictureCollate
from hf_integration.data.steps import num_loss_tokens
from hf_integration.training.callbacks import AgreedStop, RunCallback, SampleProgress
from hf_integration.training.limits import check_arguments
from hf_integration.training.loss import needs_weights, weight_factor, zero_loss
from hf_integration.training.run import Run
from hf_integration.training.schedule import check_moves
from hf_integration.upstream import (
    PREFIX_CHECKPOINT_DIR,
    ProgressCallback,
    Trainer,
    jit_callback,
    shifts_labels,
)

logger = logging.getLogger(__name__)
_Base: Any = object


class OdbTrainerMixin(_Base):  # type: ignore[misc]  # the Trainer comes behind it
    """Put before a Trainer: ``class MyTrainer(OdbTrainerMixin, SFTTrainer): pass``.

    Batches by token budget, the same number of steps on every rank; the gradient of every step is
    that of the mean over all its tokens that carry loss; checkpoints resume within an epoch, on
    any number of ranks; the learning rate, progress and end go by samples. Without ``odb``
    everything is left to the Trainer.

    Args:
        args: As the Trainer's.
        odb: Settings of the batches; None: the Trainer's own.
        odb_length: ``row -> tokens`` where that is not the length of "input_ids".
        kwargs: As the Trainer's.
    Raises:
        Refusal: A setting that cannot be had together with it.
    """

    def __init__(
        self,
        *args: Any,
        odb: OdbArguments | None = None,
        odb_length: Length | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.odb, self._odb_length = odb, odb_length
        self._odb_run: Run | None = None
        self._odb_folder: Path | None = None
        self._odb_groups: tuple[Any, Any] = (None, None)
        if odb is None:
            return
        check_arguments(self, odb)
        if isinstance(self.data_collator, PictureCollate) and self.args.remove_unused_columns:
            logger.info('remove_unused_columns is off: the collator needs the column "pictures"')
            self.args.remove_unused_columns = False
        if odb.warmup_samples is not None:
            self.args.warmup_steps = odb.warmup_samples
        if self.args.world_size > 1:
            self._odb_groups = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
        told = odb.loss_shifts_labels
        self._odb_shifted = shifts_labels(self) if told is None else told
        self._odb_weighs = needs_weights(self)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, and ``odb_summary.json`` in ``output_dir`` at the end.

        Args:
            resume_from_checkpoint: True begins anew where there is no checkpoint yet, so that the
                same command starts and resumes; incomplete folders are skipped.
            args: As the Trainer's.
            kwargs: As the Trainer's.
        """
        if self.odb is None:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        self._odb_folder = checkpoint.resolve(resume_from_checkpoint, Path(self.args.output_dir))
        folder = None if self._odb_folder is None else str(self._odb_folder)
        skips, self.args.ignore_data_skip = self.args.ignore_data_skip, True
        try:
            output = super().train(folder, *args, **kwargs)
            assert self._odb_run is not None
            self._odb_run.finish(
                self.args.output_dir, self.state.global_step, writes=self.args.should_save
            )
            return output
        finally:
            self.args.ignore_data_skip = skips
            self._odb_release()

    def get_train_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Iterable over optimizer steps, one epoch per ``iter()``."""
        if self.odb is None:
            return super().get_train_dataloader(*args, **kwargs)
        self._odb_release()
        self._odb_run = run = Run(self, self.odb, self._odb_length, self._odb_groups)
        if self._odb_folder is not None:
            run.resume(self._odb_folder, self)
        self._odb_add_callbacks(run)
        return run.feed

    def set_initial_training_values(self, args: Any, dataloader: Any, *more: Any) -> Any:
        """Numbers of epochs and steps that no run reaches: the samples end it."""
        if not isinstance(dataloader, Feed):
            return super().set_initial_training_values(args, dataloader, *more)
        run = self._odb_run
        assert run is not None
        run.begin(run.resumed_from or 0)
        planned = run.feed.goal.samples
        steps = args.max_steps if args.max_steps > 0 else int(planned or 0)
        endless = max(steps, 1) + 1  # update steps of an epoch
        epochs = 0 if run.feed.finished else 1 << 31
        return (
            epochs,
            endless,
            run.feed.goal.rows,
            planned or run.feed.goal.rows,
            self.get_total_train_batch_size(args),
            endless * args.gradient_accumulation_steps,
            steps,
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> Any:
        """The batches of the next step, and the number of tokens that carry its loss."""
        run = self._odb_run
        if run is None or self.odb is None:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        started = time.perf_counter()
        step = next(epoch_iterator, None)
        run.meter.data_wait_s += time.perf_counter() - started
        if step is None:
            self.control.should_epoch_stop = True
            return [], None
        count = sum(num_loss_tokens(batch, shifted=self._odb_shifted) for batch in step.batches)
        total = torch.tensor(count)
        if run.group is not None:
            dist.all_reduce(total, group=run.group)
        return step.batches, total.clamp(min=1).to(device)

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As the Trainer's; a loss that is a mean is weighed by its share of the step's tokens."""
        weighs = self.odb is not None and self._odb_weighs and num_items_in_batch is not None
        if not weighs or not model.training:
            kwargs["num_items_in_batch"] = num_items_in_batch
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        count = num_loss_tokens(inputs, shifted=self._odb_shifted)
        outputs_too = return_outputs or count == 0
        result = super().compute_loss(model, inputs, return_outputs=outputs_too, **kwargs)
        loss, outputs = result if outputs_too else (result, None)
        if count == 0:
            loss = zero_loss(outputs)
        loss = loss * (count * weight_factor(self)) / num_items_in_batch
        return (loss, outputs) if return_outputs else loss

    def _prepare_inputs(self, inputs: Any) -> Any:
        """As the Trainer's; pixels of pictures are made on the device."""
        inputs = super()._prepare_inputs(inputs)
        if isinstance(self.data_collator, PictureCollate) and PATCHES in inputs:
            return self.data_collator.model_inputs(inputs)
        return inputs

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """As the Trainer's, over the samples of the run where their number is known."""
        run = self._odb_run
        planned = None if run is None or self.odb is None else run.feed.goal.samples
        if run is None or planned is None or self.args.max_steps > 0:
            return super().create_scheduler(num_training_steps, optimizer)
        own = self.lr_scheduler is None
        scheduler = super().create_scheduler(planned, optimizer)
        if own:  # else it is the user's, and goes by steps
            check_moves(scheduler)
            run.moves_rate = True
        return scheduler

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As the Trainer's, with ``odb/...`` metrics beside the training loss."""
        run = self._odb_run
        if run is not None and "loss" in logs:
            logs.update(run.metrics)
            run.metrics = {}
        key = "train_samples_per_second"
        if run is not None and key in logs:
            logs[key] = run.samples_per_second(logs["train_runtime"])
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        if self._odb_run is not None:
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            folder = Path(self._get_output_dir(trial=trial)) / name
            self._odb_run.save(folder, writes=self.args.should_save)
        super()._save_checkpoint(model, trial, *args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._odb_run is not None:
            self._odb_run.wait()  # the file that marks the checkpoint as whole comes next

    def _odb_add_callbacks(self, run: Run) -> None:
        bar = self.pop_callback(ProgressCallback) or self.pop_callback(SampleProgress)
        if bar is not None:
            self.add_callback(SampleProgress(run, max_str_len=getattr(bar, "max_str_len", 100)))
        self.pop_callback(RunCallback)
        self.callback_handler.callbacks.insert(1, RunCallback(run))  # after the Trainer's own flow
        signals = jit_callback(self)
        if signals is not None:
            self.remove_callback(signals)
            self.add_callback(AgreedStop(signals, run.group))

    def _odb_release(self) -> None:
        if self._odb_run is not None:
            self._odb_run.feed.loader.shutdown()
        self._odb_run = None


class OdbTrainer(OdbTrainerMixin, Trainer):
    """``transformers.Trainer`` with online dynamic batching."""

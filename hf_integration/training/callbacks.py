"""What happens between the Trainer's steps: counts, learning rate, progress, the end, signals."""

import math
from typing import Any

import torch
import torch.distributed as dist
from tqdm.auto import tqdm

from hf_integration.training.run import Run
from hf_integration.training.schedule import move
from hf_integration.upstream import ProgressCallback, TrainerCallback


class RunCallback(TrainerCallback):
    """Moves a run on after each optimizer step.

    The Trainer's own flow ends a run at ``state.max_steps``, with a last evaluation and checkpoint.
    That number is kept ahead of the step, as the samples so far predict it, until the last one.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped: commit the samples, before anyone asks whether it is over."""
        run, step = self.run, state.global_step + 1
        run.feed.commit()
        samples, planned = run.feed.totals.samples, run.feed.goal.samples
        if run.moves_rate:
            move(kwargs["lr_scheduler"], samples)
        if run.feed.finished:
            state.max_steps = step
        elif args.max_steps <= 0:
            predicted = math.ceil(step * planned / max(1, samples)) if planned else step
            state.max_steps = max(predicted, step + 2)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Correct the epoch, which the Trainer takes from a number of steps."""
        state.epoch = self.run.feed.totals.samples / self.run.feed.goal.rows
        self._note_metrics(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._note_metrics(state, control)

    def _note_metrics(self, state: Any, control: Any) -> None:
        """Sum up over ranks where all of them know that they will log."""
        if control.should_log and not self.run.metrics:
            self.run.metrics = self.run.meter.read(state.global_step)


class SampleProgress(ProgressCallback):
    """The Trainer's progress bar, counting samples; by steps where those end the run."""

    def __init__(self, run: Run, **options: Any) -> None:
        super().__init__(**options)
        self.run = run
        self.training_bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        planned = self.run.feed.goal.samples
        if planned is None:
            super().on_train_begin(args, state, control, **kwargs)  # type: ignore[no-untyped-call]
        elif state.is_world_process_zero:
            done = min(planned, self.run.feed.totals.samples)
            self.training_bar = tqdm(total=planned, initial=done, unit="sample", dynamic_ncols=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        feed = self.run.feed
        if feed.goal.samples is None:
            super().on_step_end(args, state, control, **kwargs)  # type: ignore[no-untyped-call]
        elif self.training_bar is not None:
            bar = self.training_bar
            if feed.finished:  # a last step may overshoot, and dropped rows are no samples
                bar.total = max(bar.n, min(bar.total, feed.totals.samples))
            bar.update(min(bar.total, feed.totals.samples) - bar.n)


class AgreedStop(TrainerCallback):
    """Saves and stops after SIGTERM, on all ranks at the end of the same step.

    The Trainer's own callback (``enable_jit_checkpoint``) saves where a rank happens to be when
    its signal arrives, so that ranks wait for each other at different steps.

    Args:
        signals: The Trainer's callback, whose signal handler goes on to notice the signal.
        group: For agreeing; None in a world of one.
    """

    def __init__(self, signals: Any, group: Any) -> None:
        self._signals, self._group = signals, group

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        asked = torch.tensor(int(self._signals.jit_manager.is_checkpoint_requested))
        if self._group is not None:
            dist.all_reduce(asked, dist.ReduceOp.MAX, group=self._group)
        if asked.item():
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._signals.on_train_end(args, state, control, **kwargs)

"""Learning rate by progress: samples trained on count, not the steps they took."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from titan_integration.errors import UserError
from titan_integration.upstream import LRSchedulersContainer, OptimizersContainer

Unit = Literal["fraction", "samples", "steps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Warm-up, plateau and decay over a run of ``total``; all lengths in one unit.

    Attributes:
        total: Length of the run.
        warmup: Length of the linear rise from 0.
        decay: Length of the fall at the end of the run.
        decay_type: Form of the fall.
        floor: Factor that the fall ends at.
    """

    total: float
    warmup: float
    decay: float
    decay_type: str = "linear"
    floor: float = 0.0

    def factor(self, before: float, after: float) -> float:
        """Learning-rate factor of the step that leads from ``before`` to ``after``.

        The rise takes the progress after the step and the fall that before it, so that neither
        the first nor the last step is trained with a factor of 0. One unit a step gives what
        torchtitan's own schedule gives.
        """
        rise = min(1.0, after / self.warmup) if self.warmup else 1.0
        fallen = before - (self.total - self.decay)
        if fallen <= 0 or not self.decay:
            return rise
        return rise * (self.floor + (1 - self.floor) * self._fall(min(1.0, fallen / self.decay)))

    def _fall(self, part: float) -> float:
        if self.decay_type == "cosine":
            return 0.5 * (1 + math.cos(math.pi * part))
        return 1 - (math.sqrt(part) if self.decay_type == "sqrt" else part)


class SampleLRSchedulers(LRSchedulersContainer):
    """torchtitan's container of LambdaLR, moved by :meth:`advance` instead of by ``step``.

    Relies on torchtitan 0.3 for: ``schedulers``, one a optimizer, that share one function of
    ``last_epoch``; a state of ``last_epoch`` only, which holds the progress here; and a trainer
    that calls ``step`` once after each optimizer step.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):
        """``warmup_steps`` and ``decay_ratio`` of the base are not used."""

        unit: Unit = "fraction"
        """What ``warmup`` and ``decay`` count: parts of the run, samples, or optimizer steps."""

        warmup: float = 0.02
        """Length of the warm-up."""

        decay: float | None = None
        """Length of the decay at the end; None: everything after the warm-up."""

        def build(  # type: ignore[override]  # as narrow as torchtitan's own
            self, *, optimizers: OptimizersContainer[Any], training_steps: int
        ) -> "SampleLRSchedulers":
            """Overridden because torchtitan's ``build`` always makes its own container."""
            return SampleLRSchedulers(optimizers, self)

        def shape(self, *, total_samples: int | None, total_steps: int | None) -> Shape:
            """The schedule of a run of that length. Raises UserError if its length is unknown."""
            total = total_steps if self.unit == "steps" else total_samples
            if total is None:
                wanted = (
                    "training.steps" if self.unit == "steps" else "data.epochs or data.sample_quota"
                )
                raise UserError(
                    f"a schedule in {self.unit} must know how long the run is; set --{wanted}"
                )
            scale = total if self.unit == "fraction" else 1
            warmup = min(self.warmup * scale, total)
            decay = total - warmup if self.decay is None else min(self.decay * scale, total)
            return Shape(
                total=total,
                warmup=warmup,
                decay=decay,
                decay_type=self.decay_type,
                floor=self.min_lr_factor,
            )

    def __init__(self, optimizers: OptimizersContainer[Any], config: Config) -> None:
        self._factor = 1.0
        self.config = config
        self.shape: Shape | None = None
        lr_lambda: Callable[[int], float] = lambda _: self._factor  # noqa: E731
        super().__init__(optimizers, lr_lambda)

    def advance(self, before: int, after: int) -> None:
        """Set the learning rate of the step about to be trained.

        Args:
            before: Progress up to this step, in the configured unit (samples for "fraction").
            after: Progress with it.
        """
        assert self.shape is not None
        self._factor = self.shape.factor(before, after)
        for scheduler in self.schedulers:
            scheduler.last_epoch = after
            scheduler._last_lr = [base * self._factor for base in scheduler.base_lrs]
            groups = scheduler.optimizer.param_groups
            for group, rate in zip(groups, scheduler.get_last_lr(), strict=True):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def step(self) -> None:
        """Nothing: torchtitan calls this after the optimizer step, ``advance`` came before it."""

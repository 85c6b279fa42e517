"""The learning rate by samples: as far along as the data, however many steps that took."""

from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from hf_integration.errors import Refusal
from hf_integration.upstream import inner_scheduler


def check_moves(scheduler: Any) -> None:
    """Raise Refusal on a scheduler that is no function of progress."""
    inner, _ = inner_scheduler(scheduler)
    if not isinstance(inner, LambdaLR):
        raise Refusal(
            "lr_scheduler_type must be a function of progress (it counts samples), got "
            f"{type(inner).__name__}; take another, or set max_steps, by which any scheduler runs"
        )


def move(scheduler: Any, samples: int) -> None:
    """Have the next step trained with the rate at ``samples``; called before the Trainer steps it.

    With a warm-up of 100 samples, a step that ends at sample 40 is followed by one with 0.4 of the
    rate. It survives in the scheduler's own state.
    """
    inner, stepped_by_trainer = inner_scheduler(scheduler)
    inner.last_epoch = samples - 1
    if not stepped_by_trainer:
        inner.step()

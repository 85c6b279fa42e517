"""Learning rate by samples: torchtitan's shape, exact over resume, and never of unknown length."""

from typing import Any, get_args

import pytest
import torch
from torch import nn

from titan_integration.errors import UserError
from titan_integration.training.schedule import SampleLRSchedulers, Shape, Unit
from titan_integration.upstream import LRSchedulersContainer, OptimizersContainer, default_adamw


def _optimizers() -> OptimizersContainer[Any]:
    torch.manual_seed(0)
    built: OptimizersContainer[Any] = default_adamw(lr=1.0).build(model_parts=[nn.Linear(2, 2)])
    return built


@pytest.mark.parametrize("decay_type", ["linear", "sqrt", "cosine"])
@pytest.mark.parametrize("decay_ratio", [None, 0.4])
def test_one_sample_a_step_gives_torchtitans_own_rates(
    decay_type: str, decay_ratio: float | None
) -> None:
    settings: dict[str, Any] = {"decay_type": decay_type, "min_lr_factor": 0.1}
    theirs = LRSchedulersContainer.Config(
        warmup_steps=5, decay_ratio=decay_ratio, **settings
    ).build(optimizers=_optimizers(), training_steps=20)
    decay = None if decay_ratio is None else 20 * decay_ratio
    ours = SampleLRSchedulers.Config(unit="samples", warmup=5, decay=decay, **settings).build(
        optimizers=_optimizers(), training_steps=20
    )
    ours.shape = ours.config.shape(total_samples=20, total_steps=None)
    for step in range(20):
        ours.advance(step, step + 1)
        rates = list(theirs.get_metrics().values())
        assert list(ours.get_metrics().values()) == pytest.approx(rates, abs=1e-12)
        for mine, other in zip(ours.schedulers, theirs.schedulers, strict=True):
            groups = zip(mine.optimizer.param_groups, other.optimizer.param_groups, strict=True)
            assert all(a["lr"] == pytest.approx(b["lr"]) for a, b in groups)
            other.optimizer.step()
        theirs.step()


def test_a_fraction_is_of_the_runs_samples() -> None:
    shape = SampleLRSchedulers.Config(warmup=0.1, decay=0.5).shape(
        total_samples=1000, total_steps=7
    )
    assert (shape.total, shape.warmup, shape.decay) == (1000, 100, 500)


def test_the_rate_is_the_same_however_the_samples_fall_into_steps() -> None:
    shape = Shape(total=1000, warmup=100, decay=500)
    assert shape.factor(40, 50) == 0.5
    assert shape.factor(0, 50) == 0.5
    assert shape.factor(750, 800) == shape.factor(750, 1000) == 0.5


def test_the_first_and_the_last_step_learn() -> None:
    shape = Shape(total=100, warmup=50, decay=50)
    assert shape.factor(0, 30) > 0
    assert shape.factor(70, 100) > 0


@pytest.mark.parametrize("unit", get_args(Unit))
def test_a_schedule_of_unknown_length_is_refused(unit: Unit) -> None:
    with pytest.raises(UserError, match="must know how long the run is"):
        SampleLRSchedulers.Config(unit=unit).shape(total_samples=None, total_steps=None)


def test_progress_is_restored() -> None:
    config = SampleLRSchedulers.Config(unit="samples", warmup=10)
    first, second = (config.build(optimizers=_optimizers(), training_steps=1) for _ in range(2))
    for schedulers in (first, second):
        schedulers.shape = config.shape(total_samples=100, total_steps=None)
    first.advance(0, 7)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == {"last_epoch": 7}

"""Packed rows in torchtitan: exact loss in every shape, pipelines, and what is refused and why."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.titan import tiny
from tests.titan.runs import delivered, scalars, summary, train
from titan_integration.errors import UserError
from titan_integration.training.batches import cost_of, layout_of
from titan_integration.training.trainer import OdbTrainer

pytestmark = pytest.mark.timeout(900)  # several runs a test

ROWS = 60
BOARD = ["--metrics.enable_tensorboard"]
FIXED = ["--data.max_samples", str(ROWS), "--data.odb.shape", "fixed"]
FIXED += ["--data.odb.token_budget", "2048", "--data.odb.overlong", "drop"]


@pytest.mark.parametrize(
    "shape",
    [
        ["--data.odb.token_budget", "512", "--training.global_batch_size", "6"],
        [*FIXED[2:], "--data.odb.rows", "2", "--training.global_batch_size", "8"],
    ],
    ids=["dynamic", "fixed"],
)
def test_gradients_equal_the_float64_reference_with_idle_ranks_and_a_partial_accumulation(
    tmp_path: Path, data_args: list[str], shape: list[str]
) -> None:
    args = [*data_args, *shape, "--data.max_samples", "45"]
    args += ["--training.max_norm", "1e9"]
    train(tmp_path, *args, ranks=2, config="tiny_documents", entry="tests.titan.gradient_check64")
    report = json.loads((tmp_path / "gradients.json").read_text())
    assert max(report["errors"]) < 1e-12
    assert report["idle"][-1] > 0
    assert sorted(delivered(tmp_path)) == [(0, index) for index in range(45)]


def test_two_stages_of_a_pipeline_train_as_one_rank_does(
    tmp_path: Path, data_args: list[str]
) -> None:
    first, one, two = (tmp_path / name for name in ("first", "one", "two"))
    args = [*data_args, *FIXED, "--training.global_batch_size", "2", *BOARD]
    # Stages draw their weights in another order: both go on from one checkpoint.
    train(first, *args, "--training.steps", "1", config="tiny_documents")
    for folder in (one, two):
        shutil.copytree(first, folder)
    train(one, *args, config="tiny_documents")
    pipeline = ["--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "2"]
    train(two, *args, *pipeline, ranks=2, config="tiny_documents")
    assert summary(one)["steps"] == summary(two)["steps"] >= 3
    wanted, found = scalars(one), scalars(two)
    for tag in ("loss_metrics/global_avg_loss", "grad_norm"):
        assert wanted[tag].keys() == found[tag].keys()
        for step, value in wanted[tag].items():
            assert found[tag][step] == pytest.approx(value, rel=1e-6), (tag, step)
    assert summary(two)["coverage"] == "exact"


def test_a_run_says_its_layout_and_measures_fill_and_balance(
    tmp_path: Path, data_args: list[str]
) -> None:
    args = [*data_args, "--data.max_samples", str(ROWS), "--data.odb.token_budget", "512"]
    args += BOARD
    result = train(tmp_path, *args, ranks=2, config="tiny_documents")
    assert "Batches are packed (as VarlenAttention asks), at most 512 tokens" in result.out
    found = scalars(tmp_path)
    assert all(0 < value <= 4 for value in found["odb/fill"].values())
    assert all(value >= 1 for value in found["odb/slowest_over_mean"].values())
    assert all(value > 0 for value in found["odb/cost"].values())
    assert summary(tmp_path)["padding_ratio"] == 0


def configured(make: Callable[[], OdbTrainer.Config], rows: Path, **changes: Any) -> Any:
    """A configuration with fields set by their dotted names, ``__`` for the dots."""
    config = make()
    config.data.path = [str(rows)]
    config.hf_assets_path = str(rows.parent)
    (rows.parent / "tokenizer.json").touch()
    for name, value in changes.items():
        *path, last = name.split("__")
        owner: Any = config
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    config.__post_init__()
    return config


def test_the_attention_chooses_the_layout_and_the_cost(rows: Path) -> None:
    found = {
        make.__name__: (layout_of(config, config.data), cost_of(config, config.data)[1] > 0)
        for make in (tiny.tiny, tiny.tiny_flex, tiny.tiny_documents)
        for config in [configured(make, rows)]
    }
    assert found == {
        "tiny": ("padded", True),
        "tiny_flex": ("packed", False),  # evaluated densely: a row costs the same whatever is in it
        "tiny_documents": ("packed", True),
    }
    config = configured(tiny.tiny_documents, rows, data__odb__cost=0.0)
    assert cost_of(config, config.data) == (1.0, 0.0)
    assert config.dataloader.data.odb.layout == "packed"


FIXED_ROWS: dict[str, Any] = {
    "data__odb__shape": "fixed",
    "data__odb__token_budget": 2048,
    "data__odb__overlong": "drop",
}


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism__pipeline_parallel_degree": 2, "training__local_batch_size": 4},
        {"training__disable_cuda_graphs": False},
        {"data__odb__overlong": "alone", "training__seq_len": 2048},
        {"data__odb__rows": 4},
    ],
    ids=str,
)
def test_fixed_shapes_allow_what_changing_ones_do_not(rows: Path, changes: dict[str, Any]) -> None:
    config = configured(tiny.tiny_documents, rows, **{**FIXED_ROWS, **changes})
    config.validate()


@pytest.mark.parametrize(
    ("make", "changes", "told"),
    [
        (
            tiny.tiny_documents,
            {"parallelism__pipeline_parallel_degree": 2},
            "--data.odb.layout packed --data.odb.shape fixed",
        ),
        (
            tiny.tiny_documents,
            {"training__disable_cuda_graphs": False},
            "--data.odb.layout packed --data.odb.shape fixed",
        ),
        (
            tiny.tiny_documents,
            {**FIXED_ROWS, "parallelism__context_parallel_degree": 2},
            "never seen to run",
        ),
        (
            tiny.tiny_documents,
            {**FIXED_ROWS, "data__odb__overlong": "alone"},
            "--training.seq_len 2048, or --data.odb.overlong drop",
        ),
        (
            tiny.tiny_documents,
            {**FIXED_ROWS, "data__odb__rows": 3},
            "--data.odb.token_budget 2046",
        ),
        (
            tiny.tiny_documents,
            {**FIXED_ROWS, "data__odb__pad_to_multiple_of": 128, "data__odb__token_budget": 2000},
            "--data.odb.token_budget 2048",
        ),
        (tiny.tiny_documents, {"training__local_batch_size": 2}, "local_batch_size must be 1"),
        (tiny.tiny, {"data__odb__layout": "packed"}, "needs flex or varlen attention"),
        (tiny.tiny, {"data__odb__shape": "fixed"}, "got a model with SDPA"),
        (tiny.tiny_flex, {"data__odb__layout": "padded", "data__odb__rows": 2}, "of packed rows"),
        (tiny.tiny_documents, {"data__odb__cost": -1.0}, "data.odb.cost must be at least 0"),
    ],
)
def test_what_cannot_run_is_refused_with_a_remedy(
    rows: Path, make: Callable[[], OdbTrainer.Config], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError) as error:
        configured(make, rows, **changes).validate()
    assert told in str(error.value)

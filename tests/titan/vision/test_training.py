"""Real runs on two gloo ranks: gradients of one process, every row once, resumed by one rank."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.titan.data.chats import chat
from tests.titan.runs import delivered, scalars, summary, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODULE = ["--module", "tests.titan.vision.tiny"]
CHECK = "tests.titan.vision.gradient_check_pictures"
UNCLIPPED = ["--training.max_norm", "1e9"]


@pytest.fixture
def run_args(vision_tokenizer: Path, mixed_rows: Path) -> list[str]:
    return [
        *MODULE,
        "--hf_assets_path", str(vision_tokenizer),
        "--data.path", str(mixed_rows),
    ]  # fmt: skip


def gradients(folder: Path, config: str, args: Sequence[str]) -> dict[str, list[float]]:
    train(folder, *args, *UNCLIPPED, ranks=2, config=config, entry=CHECK)
    found: dict[str, list[float]] = json.loads((folder / "gradients.json").read_text())
    return found


def test_packed_rows_with_a_short_last_step_have_the_gradients_of_one_process(
    tmp_path: Path, run_args: list[str]
) -> None:
    args = ["--training.global_batch_size", "6", "--data.odb.token_budget", "320"]
    found = gradients(tmp_path, "tiny_qwen", [*run_args, *args, "--data.max_samples", "33"])
    assert max(found["errors"]) <= 1e-6
    assert max(found["worst"]) <= 1e-4
    assert sum(found["idle"]) > 0
    assert summary(tmp_path)["coverage"] == "exact"


def test_texts_alone_give_the_tower_no_gradient_at_all(
    tmp_path: Path, run_args: list[str], vision_tokenizer: Path
) -> None:
    rows = tmp_path / "texts.jsonl"
    lines = [json.dumps({"messages": chat(f"what is {i}?", "no idea " * i)}) for i in range(1, 8)]
    rows.write_text("\n".join(lines))
    args = [*run_args, "--data.path", str(rows), "--data.odb.layout", "padded"]
    found = gradients(tmp_path, "tiny_qwen", args)
    assert found["tower"] == [0.0] * len(found["tower"])
    assert max(found["errors"]) <= 1e-6


@pytest.mark.parametrize(("config", "bound"), [("tiny_muse", 1e-5), ("tiny_kimi", 5e-3)])
def test_other_families_have_the_gradients_of_one_process(
    tmp_path: Path, run_args: list[str], config: str, bound: float
) -> None:
    args = [*run_args, "--data.odb.layout", "padded", "--data.max_samples", "21"]
    found = gradients(tmp_path, config, args)
    assert max(found["errors"]) <= bound
    assert max(found["tower"]) > 0
    assert summary(tmp_path)["pictures"] > 0


def test_a_run_goes_on_on_one_rank_and_every_row_is_trained_on_once(
    tmp_path: Path, run_args: list[str]
) -> None:
    args = [*run_args, "--data.odb.token_budget", "320", "--freeze", "tower"]
    args += ["--validator.enable", "--data.validation_fraction", "0.1", "--validator.freq", "3"]
    args += ["--metrics.enable_tensorboard"]
    train(tmp_path, *args, "--training.steps", "3", ranks=2, config="tiny_qwen")
    first = summary(tmp_path)
    assert first["coverage"].startswith("partial")
    train(tmp_path, *args, config="tiny_qwen")
    done = summary(tmp_path)
    assert done["coverage"] == "exact"
    assert done["resumed_from"] == 3
    assert sorted(delivered(tmp_path)) == [(0, i) for i in range(done["samples_total"])]
    assert done["tower_padding_ratio"] < 0.05  # black pictures of batches without any
    assert done["padding_ratio"] < 0.01
    values: dict[str, Any] = scalars(tmp_path)
    assert values["odb/pictures_per_s"][3] > 0
    assert values["odb/patches_per_s"][3] > 0
    assert "validation_metrics/loss" in values
    assert (tmp_path / "odb_batches.png").is_file()

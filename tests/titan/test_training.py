"""The exact loss, the last samples of an epoch, and the three ways in which a run ends."""

import json
import shutil
from pathlib import Path

import pytest

from tests.titan.runs import Run, delivered, summary, train

pytestmark = pytest.mark.timeout(900)  # several runs a test


@pytest.mark.parametrize(
    ("config", "accumulation", "check", "limit"),
    [
        ("tiny", 1, "gradient_check64", 1e-12),
        ("tiny", 4, "gradient_check64", 1e-12),
        ("tiny_flex", 4, "gradient_check", 1e-5),
    ],
)
def test_gradients_equal_the_float64_reference_with_idle_ranks_and_a_partial_accumulation(
    tmp_path: Path, data_args: list[str], config: str, accumulation: int, check: str, limit: float
) -> None:
    args = [*data_args, "--data.max_samples", "45", "--data.odb.token_budget", "512"]
    args += ["--training.global_batch_size", str(2 * accumulation), "--training.max_norm", "1e9"]
    if config == "tiny_flex":
        # Packed rows are fuller: this budget lets the data end inside an accumulation too.
        args += ["--data.odb.layout", "packed", "--data.odb.token_budget", "384"]
    train(tmp_path, *args, ranks=2, config=config, entry=f"tests.titan.{check}")
    report = json.loads((tmp_path / "gradients.json").read_text())
    assert len(report["errors"]) >= 2
    assert max(report["errors"]) < limit
    assert accumulation == 1 or report["idle"][-1] > 0
    assert sorted(delivered(tmp_path)) == [(0, index) for index in range(45)]
    assert summary(tmp_path)["coverage"] == "exact"


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory, data_args: list[str]) -> Path:
    """The folder of a run of two steps; tests go on with a copy of it."""
    folder = tmp_path_factory.mktemp("two_steps")
    train(folder, *data_args, "--training.steps", "2")
    return folder


def test_a_quota_and_a_number_of_steps_end_a_run_and_leave_it_resumable(
    tmp_path: Path, data_args: list[str], two_steps: Path
) -> None:
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    first = summary(tmp_path)
    assert first["steps"] == 2
    assert first["coverage"].endswith("ended by training.steps")
    train(tmp_path, *data_args, "--data.sample_quota", "100")
    second = summary(tmp_path)
    assert second["samples_emitted"] >= 100 > first["samples_emitted"]
    assert second["resumed_from"] == 2
    assert len(set(delivered(tmp_path))) == second["samples_emitted"]


def test_torchtitans_own_batches_run_on_the_same_rows(tmp_path: Path, data_args: list[str]) -> None:
    args = ["--data.odb.no-enable", "--training.steps", "2", "--training.seq_len", "256"]
    result = train(tmp_path, *data_args, *args, config="tiny_flex")
    assert "step:  2" in result.out
    assert not (tmp_path / "odb_summary.json").exists()
    odb = Run(tmp_path, *data_args, config="tiny_flex").wait()
    assert odb.code == 2
    assert "error: the checkpoint was not saved with ODB" in odb.err


def test_a_checkpoint_of_other_rows_is_refused(
    tmp_path: Path, data_args: list[str], two_steps: Path
) -> None:
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    other = Run(tmp_path, *data_args, "--data.max_samples", "100").wait()
    assert other.code == 2
    line = next(line for line in other.err.splitlines() if line.startswith("error: "))
    assert "the checkpoint does not fit" in line
    assert "240" in line
    assert "100" in line

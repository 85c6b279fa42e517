"""Damaged checkpoints: the newest whole one is used, and what was passed over is named."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.titan.job.runs import EVERY_ROW_ONCE, check, finish
from tests.titan.runs import Run, delivered, summary
from titan_integration.run.checkpoints import examine, newest_whole

pytestmark = pytest.mark.timeout(600)
Copy = Callable[[Path], Path]


def _truncate(path: Path, part: float = 0.5) -> None:
    os.truncate(path, int(path.stat().st_size * part))


def _truncate_shard(step: Path) -> None:
    _truncate(step / "__1_0.distcp")


def _lose_shard(step: Path) -> None:
    (step / "__0_0.distcp").unlink()


def _truncate_index(step: Path) -> None:
    _truncate(step / ".metadata")


def _lose_index(step: Path) -> None:
    (step / ".metadata").rename(step / ".metadata.tmp")


def _zero_index(step: Path) -> None:
    os.truncate(step / ".metadata", 0)


def _zero_shard(step: Path) -> None:
    size = (step / "__1_0.distcp").stat().st_size
    (step / "__1_0.distcp").write_bytes(bytes(size))


def _keep_export(step: Path) -> None:
    shutil.rmtree(step)
    step.mkdir()
    (step / "model.safetensors.index.json").write_text("{}")
    (step / "model-00001-of-00001.safetensors").write_bytes(b"weights")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_truncate_shard, r"its __1_0.distcp has \d+ of \d+ bytes"),
        (_lose_shard, "its __0_0.distcp is missing"),
        (_truncate_index, "its .metadata cannot be read"),
        (_zero_index, "its .metadata cannot be read"),
        (_lose_index, "it has no .metadata, its save did not end"),
        (_zero_shard, r"its __1_0.distcp is damaged at byte \d+"),
        (_keep_export, "it holds only weights in Hugging Face format"),
    ],
)
def test_the_newest_whole_checkpoint_is_found(
    copy: Copy, saved: Path, damage: Callable[[Path], None], why: str
) -> None:
    folder = copy(saved) / "checkpoint"
    assert newest_whole(folder).checkpoint == examine(7, folder / "step-7")
    damage(folder / "step-7")
    choice = newest_whole(folder)
    assert choice.checkpoint is not None
    assert choice.checkpoint.step == 6
    [passed_over] = choice.passed_over
    assert passed_over.problem is not None
    assert pytest.importorskip("re").search(why, passed_over.problem)


def test_a_run_goes_on_from_the_whole_one_and_names_the_others(
    copy: Copy, saved: Path, data_args: list[str]
) -> None:
    folder = copy(saved)
    _truncate_shard(folder / "checkpoint" / "step-7")
    _lose_index(folder / "checkpoint" / "step-6")
    # A run that keeps two: the broken ones must not make it purge the only whole one.
    args = [*data_args, "--checkpoint.keep_latest_k", "2", "--checkpoint.interval", "1"]
    short = Run(folder, *args, "--training.steps", "4", ranks=2).wait()
    check("passed over", short)
    assert "step-7: its __1_0.distcp has" in short.out
    assert "step-6: it has no .metadata" in short.out
    assert summary(folder)["resumed_from"] == 3
    for step in (3, 4):
        assert examine(step, folder / "checkpoint" / f"step-{step}").problem is None
    finish(folder, *data_args)
    assert sorted(delivered(folder)) == EVERY_ROW_ONCE
    assert not list((folder / "checkpoint").glob("replaced-*"))


def test_weights_alone_are_passed_over_and_nothing_whole_is_refused(
    copy: Copy, saved: Path, data_args: list[str]
) -> None:
    folder = copy(saved)
    weights = [*data_args, "--checkpoint.last_save_model_only", "--training.steps", "8"]
    assert Run(folder, *weights, ranks=2).wait().code == 0
    assert examine(8, folder / "checkpoint" / "step-8").problem == "it holds only weights"
    for step in (3, 6, 7):
        _truncate_index(folder / "checkpoint" / f"step-{step}")
    check("nothing whole", Run(folder, *data_args, ranks=2).wait())


def test_a_save_over_an_old_checkpoint_that_is_cut_short_leaves_the_old_one(
    copy: Copy, saved: Path, data_args: list[str]
) -> None:
    folder = copy(saved)
    # As a process leaves it that is killed while it saves step 7 anew.
    shutil.move(folder / "checkpoint" / "step-7", folder / "checkpoint" / "replaced-7")
    (folder / "checkpoint" / "step-7").mkdir()
    (folder / "checkpoint" / "step-7" / "__0_0.distcp").write_bytes(b"half")
    finish(folder, *data_args)
    assert summary(folder)["resumed_from"] == 7
    assert sorted(delivered(folder)) == EVERY_ROW_ONCE


def test_a_checkpoint_of_another_model_is_refused_in_one_line(
    copy: Copy, saved: Path, data_args: list[str]
) -> None:
    args = [*data_args, "--module", "tests.titan.job.configs", "--config", "wider"]
    check("refused weights", Run(copy(saved), *args, ranks=2).wait())

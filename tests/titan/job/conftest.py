"""Folders of runs that were saved, made once; tests go on with copies of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.titan.runs import train


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory, data_args: list[str]) -> Path:
    """Seven steps of two ranks, with checkpoints of steps 3, 6 and 7."""
    folder = tmp_path_factory.mktemp("saved")
    train(folder, *data_args, "--training.steps", "7", ranks=2)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, data_args: list[str]) -> Path:
    """Two epochs of 40 rows, done."""
    folder = tmp_path_factory.mktemp("finished")
    train(folder, *data_args, "--data.max_samples", "40", "--data.epochs", "2", ranks=2)
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    """A copy of a run's folder, to do something to."""

    def make(folder: Path) -> Path:
        shutil.copytree(folder, tmp_path / "run")
        return tmp_path / "run"

    return make

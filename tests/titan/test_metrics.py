"""What a person sees: TensorBoard scalars, the progress bar, and the end of a run without join."""

import json
import math
import os
import pty
import re
import termios
from pathlib import Path

import pytest

from tests.titan.runs import Run, delivered, scalars, summary, train

pytestmark = pytest.mark.timeout(900)  # several runs a test

TAGS = {
    "cost",
    "data_wait_s",
    "distinct_shapes",
    "dropped/empty",
    "dropped/error",
    "dropped/filtered",
    "dropped/overlong",
    "exchange_wait_s",
    "fill",
    "idle_steps",
    "padded_tokens_per_s",
    "padding_ratio",
    "real_tokens_per_s",
    "recirculated",
    "run_fraction",
    "samples_dropped",
    "samples_emitted",
    "samples_per_s",
    "samples_per_step",
    "slowest_over_mean",
    "splits",
    "window_fill",
}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> list[str]:
    """Three rows and one without an answer, each a batch: rank 0 takes two steps, rank 1 one."""
    path = tmp_path_factory.mktemp("few") / "few.jsonl"
    lines = rows.read_text().splitlines()[:3]
    path.write_text("\n".join([*lines, json.dumps({"prompt": "q", "response": ""})]))
    return ["--data.path", str(path), "--data.odb.token_budget", "1", "--data.no-shuffle"]


def test_tensorboard_gets_every_metric_and_a_maximum_without_idle_ranks(
    tmp_path: Path, data_args: list[str], few: list[str]
) -> None:
    args = [*data_args, *few, "--metrics.enable_tensorboard"]
    train(tmp_path, *args, "--data.odb.worker_method", "process", ranks=2)
    found = scalars(tmp_path)
    assert {tag.removeprefix("odb/") for tag in found if tag.startswith("odb/")} == TAGS
    for tag, values in found.items():
        assert all(map(math.isfinite, values.values())), tag
    assert found["odb/samples_emitted"][2] == 3
    assert found["odb/run_fraction"][2] == 1  # what is dropped is no longer to be done
    assert found["odb/dropped/filtered"][2] == found["odb/samples_dropped"][2] == 1
    idle = found["odb/idle_steps"]
    assert sorted(idle.values()) == [0, 1]
    average, largest = found["loss_metrics/global_avg_loss"], found["loss_metrics/global_max_loss"]
    for step in (1, 2):  # with rank 1 idle, the average and the largest loss are rank 0's
        assert (largest[step] > average[step] + 1e-4) == (not idle[step])
        assert largest[step] >= average[step] - 1e-5
    result = summary(tmp_path)
    assert (result["coverage"], result["dropped_by_reason"]) == ("exact", {"filtered": 1})


def test_without_join_the_epoch_ends_with_its_first_finished_rank_and_a_bar_shows_it(
    tmp_path: Path, data_args: list[str], few: list[str]
) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 160))
    run = Run(tmp_path, *data_args, *few, "--data.odb.no-join", ranks=2, terminal=theirs)
    os.close(theirs)
    shown = _read(ours)
    assert run.wait().code == 0, shown[-4000:]
    last = re.split(r"[\r\n]+", shown[: shown.rindex("padding")])[-1]
    bar = r"67%.* 2/3 .*step 1 loss \d+\.\d+ [\d,]+ tok/s"
    assert re.search(bar, last), shown[-4000:]
    assert sorted(delivered(tmp_path)) == [(0, 0), (0, 1)]  # and row 3 was dropped
    assert summary(tmp_path)["coverage"] == "partial: 3 of 4, ended by data.odb.no-join"


def _read(terminal: int) -> str:
    """Everything that is written there until all writers are gone."""
    chunks = []
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(terminal)
    return b"".join(chunks).decode(errors="replace")

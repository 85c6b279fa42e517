"""The inspection tool on state files and checkpoint folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from odb_nodes import describe_state, odb_loader, pack_states, reshard_states
from tests.helpers import Tokens, random_lengths
from titan_integration.run.inspection import main


def some_states() -> list[Any]:
    data = Tokens([0, *random_lengths(79)])
    with odb_loader(data, token_budget=256, window=16, prefetch=0) as loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        return reshard_states([loader.state_dict()], 2)


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    path = tmp_path / "states.bin"
    path.write_bytes(pack_states(some_states()))
    return path


def test_a_state_file_is_told_and_verified(
    state_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(state_file), "--verify", "80"]) == 0
    out = capsys.readouterr().out
    told = [describe_state(state) for state in some_states()]
    emitted, remaining = (sum(rank[name] for rank in told) for name in ("emitted", "remaining"))
    assert "epoch 0, step 4, 2 ranks, dataset of 80 samples" in out
    assert "verify: exact" in out
    total = next(line for line in out.splitlines() if line.split()[:1] == ["all"])
    assert [str(emitted), str(remaining)] == [total.split()[1], total.split()[5]]
    assert "window=16" in out


def test_json_holds_the_same(state_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(state_file), "--json", "--verify", "80"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verify"] == "exact"
    total = told["total"]
    dropped = sum(total["dropped"].values())
    assert total["emitted"] + total["remaining"] + dropped == 80
    assert 0 <= total["padding"] < 1
    assert len(told["ranks"]) == 2


def test_another_dataset_or_a_lost_sample_fails_the_verification(
    state_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(state_file), "--verify", "81"]) == 1
    assert "of a dataset of 80 samples, not of 81" in capsys.readouterr().out
    states = some_states()
    cursor = states[1]["source"]["source"]["view"]["cursor"]
    cursor["leftovers"] = cursor["leftovers"][8:]
    path = tmp_path / "lost.bin"
    path.write_bytes(pack_states(states))
    assert main([str(path), "--verify", "80"]) == 1
    assert "79 positions are done or left" in capsys.readouterr().out


def test_a_checkpoint_folder_is_read_by_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoint" / "step-4"
    entries = {"dataloader": {"odb": pack_states(some_states())}, "model": {"w": torch.ones(3)}}
    save(entries, checkpoint_id=folder, no_dist=True)
    assert main([str(folder), "--verify", "80"]) == 0
    assert "verify: exact" in capsys.readouterr().out
    assert main([str(folder.parent)]) == 2
    assert "has step-4" in capsys.readouterr().err


def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage, stock, empty = tmp_path / "x.bin", tmp_path / "stock", tmp_path / "empty.bin"
    garbage.write_bytes(b"garbage" * 100)
    empty.write_bytes(pack_states([]))
    save({"model": {"w": torch.ones(3)}}, checkpoint_id=stock, no_dist=True)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ".metadata").write_bytes(b"nothing")
    for path, word in (
        (tmp_path / "missing", "does not exist"),
        (garbage, "not a state blob"),
        (empty, "holds no state"),
        (stock, "was dynamic batching on"),
        (tmp_path, "has no .metadata"),
        (broken, "its .metadata cannot be read"),
    ):
        assert main([str(path)]) == 2
        err = capsys.readouterr().err
        assert word in err
        assert err.count("\n") == 1

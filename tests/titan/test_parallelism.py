"""Tensor parallel, replicated and hybrid sharded ranks: the same loss, every sample once."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.titan.runs import delivered, summary, train

pytestmark = pytest.mark.timeout(900)  # several runs a test

NUM_ROWS, NUM_HELD = 100, 20
FEW_ROWS = ["--data.max_samples", str(NUM_ROWS), "--data.odb.token_budget", "512"]
# Two microbatches a step on two ranks, one on four; the reference is of gradients before clipping.
CHECKED = [*FEW_ROWS, "--training.global_batch_size", "4", "--training.max_norm", "1e9"]
ENTRY = "tests.titan.gradient_check"


def _audit(folder: Path, rank: int, log: str) -> list[dict[str, Any]]:
    lines = (folder / f"{log}.rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _errors(folder: Path) -> list[float]:
    errors: list[float] = json.loads((folder / "gradients.json").read_text())["errors"]
    return errors


def _of_tensor_parallel_pairs(folder: Path, log: str) -> list[tuple[int, int]]:
    """(step, index) of all samples of ranks 0 and 2, which 1 and 3 must have had as well."""
    audits = [
        [line for line in _audit(folder, rank, log) if "indices" in line] for rank in range(4)
    ]
    assert audits[::2] == audits[1::2]
    return [(line["step"], i) for audit in audits[::2] for line in audit for i in line["indices"]]


def test_tensor_parallel_peers_train_and_validate_on_the_same_samples(
    tmp_path: Path, data_args: list[str], rows: Path
) -> None:
    heldout = tmp_path / "heldout.jsonl"
    heldout.write_text("".join(rows.read_text().splitlines(keepends=True)[-NUM_HELD:]))
    args = [*data_args, *CHECKED, "--parallelism.tensor_parallel_degree", "2"]
    args += ["--data.validation_path", str(heldout), "--validator.enable", "--validator.freq", "4"]
    train(tmp_path, *args, ranks=4, entry=ENTRY)
    trained = _of_tensor_parallel_pairs(tmp_path, "audit")
    assert sorted(index for _, index in trained) == list(range(NUM_ROWS))
    validated = _of_tensor_parallel_pairs(tmp_path, "audit.validation")
    assert {step for step, _ in validated} >= {1, 4}  # torchtitan's first is at step 1
    assert sorted(validated) == sorted(product({step for step, _ in validated}, range(NUM_HELD)))
    assert max(_errors(tmp_path)) < 1e-5
    result = summary(tmp_path)
    assert (result["coverage"], result["world_size"]) == ("exact", 2)


def test_a_checkpoint_of_two_replicas_resumes_on_two_by_two_hybrid_ranks(
    tmp_path: Path, data_args: list[str]
) -> None:
    args = [*data_args, *CHECKED, "--parallelism.data_parallel_replicate_degree", "2"]
    args += ["--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "2"]
    args += ["--checkpoint.async_mode", "async"]
    train(tmp_path, *args, "--training.steps", "5", ranks=2, entry=ENTRY)
    first = summary(tmp_path)
    assert max(_errors(tmp_path)) < 1e-5
    kept = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert "step-1" not in kept  # torchtitan keeps one or two more while it writes
    assert {"step-4", "step-5"} <= kept
    train(tmp_path, *args, "--parallelism.data_parallel_shard_degree", "2", ranks=4, entry=ENTRY)
    second = summary(tmp_path)
    assert max(_errors(tmp_path)) < 1e-5
    assert sorted(delivered(tmp_path)) == [(0, index) for index in range(NUM_ROWS)]
    assert (second["coverage"], second["world_size"]) == ("exact", 4)
    assert (first["world_size"], second["resumed_from"]) == (2, 5)
    assert second["real_tokens"] > first["real_tokens"]

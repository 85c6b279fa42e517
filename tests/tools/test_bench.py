"""The benchmark at its smallest: every column loads, every section writes what it should."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench.__main__ import main
from tools.bench.columns.columns import COLUMNS, Job, available
from tools.bench.columns.data import Audit, TokenDataset, workload
from tools.bench.columns.offline import bucketed_batches, deal, minimum_batches
from tools.bench.measure import resources, states, timing
from tools.bench.measure.loop import training
from tools.bench.measure.results import SCHEMA, Row, Section, find
from tools.bench.measure.settings import Settings
from tools.bench.report import write_report
from tools.data.workloads import fewest_groups

TINY = Settings.tiny()
META = {
    "size": "tiny",
    "command": "test",
    "commit": "",
    "time": "",
    "seconds": 0,
    "load": [0, 0],
    "software": {},
    "machine": {"processor": "", "cores": 1, "memory": "", "system": ""},
}


@pytest.mark.parametrize("column", available(list(COLUMNS)))
def test_every_column_emits_every_sample_once(column: str) -> None:
    lengths = workload("mmmix", 40)
    audit = Audit()
    job = Job(dataset=TokenDataset(lengths), lengths=lengths, budget=16384, window=8, num_workers=0)
    for batch in COLUMNS[column](job):
        audit.add(batch)
    assert sorted(audit.seen.items()) == [(index + 1, 1) for index in range(40)]
    assert audit.tokens == lengths.sum()


@pytest.mark.parametrize("batches", [minimum_batches, lambda n, b: bucketed_batches(n, b, 0)])
def test_offline_batches_keep_the_budget_and_hold_every_sample(batches: Any) -> None:
    lengths = workload("sharegpt4o", 300)
    found = batches(lengths, 16384)
    assert sorted(i for batch in found for i in batch) == list(range(300))
    assert all(len(batch) * lengths[batch].max() <= 16384 for batch in found)
    assert len(found) >= fewest_groups(lengths, 16384) == len(minimum_batches(lengths, 16384))


def test_dealt_batches_give_every_rank_as_many_steps() -> None:
    dealt = deal(minimum_batches(workload("llava", 100), 16384), 3, seed=0)
    assert len({len(batches) for batches in dealt}) == 1
    assert sorted(i for rank in dealt for batch in rank for i in batch) == list(range(100))


@pytest.mark.slow
def test_the_command_writes_its_schema_and_a_page(tmp_path: Path) -> None:
    arguments = ["--size", "tiny", "--sections", "scale", "--out", str(tmp_path)]
    assert main([*arguments, "--docs", str(tmp_path / "docs")]) == 0
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["schema"] == SCHEMA
    section = content["sections"]["scale"]
    assert {"machine", "software", "commit", "command", "seconds", "load"} <= set(section["meta"])
    rows = [Row(**row) for row in section["rows"]]
    assert {row.column for row in find(rows, "scale")} == {"ours", "standard-8"}
    assert "## State" in (tmp_path / "docs" / "benchmarks.md").read_text()


@pytest.mark.slow
def test_the_timed_sections_and_the_gpu_loop_run_on_a_cpu(tmp_path: Path) -> None:
    rows = [*timing.speed(TINY), *resources.overlap(TINY), *states.scale(TINY), *training(TINY)]
    assert {row.column for row in find(rows, "speed")} >= set(COLUMNS) - {"reference"}
    for measure in ("speed", "overlap", "scale", "training-cpu"):
        assert find(rows, measure, column="ours"), measure
    assert find(rows, "training-cpu", column="ours")[0].values["of_standard"]["median"] > 0
    write_report({"all": Section(rows=rows, meta=META)}, tmp_path)
    assert {path.name for path in (tmp_path / "img").iterdir()} >= {"bench-speed.png"}

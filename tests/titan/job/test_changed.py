"""What samples are made from is compared when a run goes on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.titan.job.runs import check
from tests.titan.runs import Run, delivered, summary, train

pytestmark = pytest.mark.timeout(600)
Copy = Callable[[Path], Path]


@pytest.fixture
def mine(tmp_path: Path, rows: Path, tokenizer: Path) -> tuple[Path, Path, list[str]]:
    """Rows and tokenizer that a test may change, and the arguments that name them."""
    shutil.copy(rows, tmp_path / "rows.jsonl")
    shutil.copytree(tokenizer, tmp_path / "tokenizer")
    args = ["--data.path", str(tmp_path / "rows.jsonl")]
    args += ["--hf_assets_path", str(tmp_path / "tokenizer")]
    return tmp_path / "rows.jsonl", tmp_path / "tokenizer", args


def test_changed_data_template_and_options_are_refused_unless_accepted(
    copy: Copy, saved: Path, mine: tuple[Path, Path, list[str]]
) -> None:
    path, tokenizer, args = mine
    folder = copy(saved)
    check("other options", Run(folder, *args, "--data.format", "messages", ranks=2).wait())
    lines = path.read_text().splitlines()
    lines[100] = lines[100].replace("What is", "What was")
    path.write_text("\n".join(lines) + "\n")
    check("other rows", Run(folder, *args, ranks=2).wait())
    path.write_text(path.read_text().replace("What was", "What is"))
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("<|end|>\n", "<|end|>")
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    check("other template", Run(folder, *args, ranks=2).wait())
    train(folder, *args, "--data.accept_changed", ranks=2)
    assert summary(folder)["coverage"] == "exact"


def test_rows_that_were_appended_join_the_next_epoch_once_accepted(
    copy: Copy, saved: Path, mine: tuple[Path, Path, list[str]]
) -> None:
    path, _, args = mine
    folder = copy(saved)
    path.write_text(path.read_text() + "\n".join(path.read_text().splitlines()[:20]) + "\n")
    args += ["--data.epochs", "2"]
    check("more rows", Run(folder, *args, ranks=2).wait())
    train(folder, *args, "--data.accept_changed", "--training.steps", "9", ranks=2)
    train(folder, *args, ranks=2)  # accepted before: not asked again
    assert summary(folder)["samples_total"] == 240 + 260
    assert summary(folder)["coverage"] == "exact"
    every_row = [(0, i) for i in range(240)] + [(1, i) for i in range(260)]
    assert sorted(delivered(folder)) == every_row

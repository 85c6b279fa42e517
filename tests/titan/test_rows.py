"""Rows of several samples through the real command: covered exactly, also after a resume."""

import json
from pathlib import Path

import pytest

from tests.titan.data.chats import MARKED, THINKING, chat
from tests.titan.runs import Run, delivered


def _write(path: Path, rows: list[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def several(tmp_path: Path, data_args: list[str]) -> list[str]:
    """Arguments of a run on 30 chats with 1, 2 or 3 answers, 60 in all, each a sample."""
    words = ("what is it " * n for n in range(1, 31))
    rows = [{"messages": chat(*[text] * 2 * (1 + i % 3))} for i, text in enumerate(words)]
    (tmp_path / "thinking.jinja").write_text(THINKING)
    return [
        *data_args,
        *("--data.path", _write(tmp_path / "several.jsonl", list(rows))),
        *("--data.chat_template", str(tmp_path / "thinking.jinja")),
    ]


@pytest.mark.slow
def test_every_answer_is_a_sample_of_its_own_and_covered_once_over_a_change_of_ranks(
    tmp_path: Path, several: list[str]
) -> None:
    first = Run(tmp_path / "run", *several, "--training.steps", "3").wait()
    assert "30 rows give 60 samples: the chat template rewrites earlier turns" in first.out
    assert 0 < len(delivered(tmp_path / "run")) < 60
    resumed = Run(tmp_path / "run", *several, ranks=2).wait()
    assert "(as found before)" in resumed.out
    summary = json.loads((tmp_path / "run" / "odb_summary.json").read_text())
    assert summary["coverage"] == "exact"
    assert summary["samples_total"] == summary["samples_emitted"] == 60
    assert sorted(delivered(tmp_path / "run")) == [(0, index) for index in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "template", "message"),
    [
        ({"messages": chat("q", "a"), "images": ["x.png"]}, MARKED, ":1: the row has images"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, MARKED, "--data.preference chosen"),
        (
            {"messages": chat("q", "a")},
            "{% if %}",
            "the chat template default is not valid: line 1",
        ),
        ({"messages": chat("q", "a")}, "{{ raise_exception('no!') }}", "refuses it: no!"),
        ({"messages": chat("q", "\ud83d")}, MARKED, "half of a surrogate pair"),
    ],
)
def test_bad_rows_and_templates_end_in_one_line(
    tmp_path: Path, data_args: list[str], row: object, template: str, message: str
) -> None:
    (tmp_path / "template.jinja").write_text(template)
    args = ["--data.path", _write(tmp_path / "bad.jsonl", [row])]
    args += ["--data.chat_template", str(tmp_path / "template.jinja")]
    result = Run(tmp_path / "run", *data_args, *args).wait()
    assert result.code == 2
    assert "Traceback" not in result.err
    [line] = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert message in line

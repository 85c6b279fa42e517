"""The check encodes what the run trains on, says what it found, and is not repeated."""

import json
import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.titan.data.chats import STABLE, THINKING, chat
from titan_integration.data.checks import check as checks
from titan_integration.data.checks.cache import Checked
from titan_integration.data.checks.check import check_rows
from titan_integration.data.checks.report import Report, percentiles
from titan_integration.data.encoding.encoder import Encoder, Encoding
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.formats.document import Reading
from titan_integration.data.inputs.open import Inputs
from titan_integration.data.sources.index import SampleIndex
from titan_integration.errors import UserError
from titan_integration.run.processes import parents

Make = Callable[..., Encoder]
ROWS: list[Any] = [
    {"messages": chat("q", "a", "r", "b"), "id": 1},
    {"messages": chat("q", "")},
    {"messages": chat("q", "long " * 30)},
    {"text": "some text"},
    {"other": 1},
]


def _table(folder: Path, rows: list[Any]) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Inputs(paths=[str(path)]).open()


def _check(
    table: Any, encoder: Encoder, *, skip: bool = False, folder: Path | None = None
) -> Checked:
    return check_rows(
        table, encoder, skip_errors=skip, dp_rank=0, dp_world_size=1, group=None, folder=folder
    )


@pytest.mark.parametrize("template", [STABLE, THINKING])
@pytest.mark.parametrize("too_long", ["truncate", "drop", "chunk"])
def test_the_check_and_the_run_agree_to_the_token(
    tmp_path: Path, encoder_for: Make, template: str, too_long: str
) -> None:
    encoder = encoder_for(template, max_len=40, too_long=too_long)
    table = _table(tmp_path, ROWS)
    checked = _check(table, encoder, skip=True)
    report, samples = checked.report, SampleIndex(table, checked.counts)
    lengths, targets, dropped = Counter[int](), 0, 0
    for i in range(len(samples)):
        try:
            sample = encoder(samples[i])
        except UserError:
            sample = None
        if sample is None:
            dropped += 1
            continue
        lengths[len(sample["input_ids"])] += 1
        targets += int((sample["labels"] != -100).sum())
    assert report.histogram == lengths
    assert (report.samples, report.target_tokens) == (lengths.total(), targets)
    assert report.dropped.total() == dropped
    assert (report.rows, report.unread_keys) == (5, Counter({"id": 1}))


def test_it_says_what_it_found(
    tmp_path: Path, encoder_for: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, checks.__name__):
        report = _check(_table(tmp_path, ROWS), encoder_for(THINKING)).report
    assert (report.answers, report.answers_trained) == (4, 4)
    for line in (
        "5 rows give 4 samples: the chat template rewrites earlier turns",
        "4 of 4 answers trained on",
        f"1 left out: no answer (as in {tmp_path}/rows.jsonl:2)",
        "nothing reads id, which 1 rows have",
        "<|user|>q<|end|>\n<|assistant|>[[<think></think>a<|end|>]]",
    ):
        assert line in caplog.text


def test_a_long_conversation_is_shown_with_where_its_targets_begin_and_end(
    tmp_path: Path, encoder_for: Make
) -> None:
    turns = [f"{name}{i}: {'so it goes on and on ' * 60}" for i in range(20) for name in "qa"]
    encoder = encoder_for(STABLE, max_len=1 << 20)
    shown = _check(_table(tmp_path, [{"messages": chat(*turns)}]), encoder).report.shown
    assert len(shown) < 3000
    assert shown.count("[[") == shown.count("]]") == 4
    assert "[[a0: so it" in shown
    assert "[[a19: so it" in shown


def test_a_passed_check_is_not_repeated_for_the_same_rows_and_settings(
    tmp_path: Path, encoder_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    first = _check(_table(tmp_path, ROWS), encoder_for(THINKING), folder=kept)
    monkeypatch.setattr(checks, "_examine", lambda *_, **__: pytest.fail("checked again"))
    again = _check(_table(tmp_path, ROWS), encoder_for(THINKING), folder=kept)
    assert again.report == first.report
    assert again.counts is not None
    assert first.counts is not None
    assert again.counts.tolist() == first.counts.tolist() == [2, 1, 1, 1, 1]
    for rows, encoder in ((ROWS[1:], encoder_for(THINKING)), (ROWS, encoder_for(STABLE))):
        with pytest.raises(pytest.fail.Exception, match="checked again"):
            _check(_table(tmp_path, rows), encoder, folder=kept)
    [stored] = kept.glob("*.npz")
    stored.write_bytes(stored.read_bytes()[:100])
    with pytest.raises(pytest.fail.Exception, match="checked again"):
        _check(_table(tmp_path, ROWS), encoder_for(THINKING), folder=kept)


def test_worker_processes_find_the_same(
    tmp_path: Path, encoder_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, encoder = _table(tmp_path, ROWS * 10), encoder_for(THINKING)
    alone = _check(table, encoder)
    monkeypatch.setattr(checks, "BLOCK", 8)
    monkeypatch.setattr(checks, "_num_processes", lambda _: 2)
    together = _check(table, encoder)
    assert together.report == alone.report
    assert together.counts.tolist() == alone.counts.tolist()  # type: ignore[union-attr]


def _check_for_ever(folder: Path, template: str, tokenizer: str) -> None:
    """In a process of its own: a check by two worker processes that takes long."""
    table = _table(folder, ROWS * 20_000)
    encoding = Encoding(max_len=2048, chat_template=template)
    _check(table, Encoder(ChatTokenizer(tokenizer_path=tokenizer), encoding), skip=True)


def test_worker_processes_end_with_a_rank_that_is_killed(
    tmp_path: Path, encoder_for: Make, tokenizer: Path
) -> None:
    encoder = encoder_for(THINKING)
    args = (tmp_path, encoder.encoding.chat_template, str(tokenizer))
    rank = multiprocessing.get_context("spawn").Process(target=_check_for_ever, args=args)
    rank.start()
    assert rank.pid is not None
    workers = _wait(lambda: _below(rank.pid), "worker processes")
    rank.kill()
    rank.join()
    _wait(lambda: not any(pid in parents() for pid in workers), "their end")


def _below(rank: int | None) -> list[int]:
    """Two worker processes at work; before, none."""
    found = [pid for pid, parent in parents().items() if parent == rank]
    spawned = [p for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
    return spawned if len(spawned) == 2 else []


def _wait(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline, f"no {what} within a minute"
        time.sleep(0.1)
    return found


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (
            [ROWS[0], {"messages": chat("q", "a"), "images": ["x"]}],
            {},
            r"rows\.jsonl:2: the row has",
        ),
        ([{"prompt": "q", "chosen": "a", "rejected": "b"}], {}, r":1: .*--data\.preference chosen"),
        ([ROWS[4], ROWS[2]], {"max_len": 9}, r":2: a sample may have at most .*got \d+; raise"),
        ([ROWS[4]], {}, "can be trained on .1 x no known keys"),
        ([], {}, "can be trained on .it is empty"),
        (ROWS, {"reading": Reading(columns={"prompt": "ask"})}, "data.columns .* got 'ask'"),
    ],
)
def test_what_needs_a_decision_ends_the_run_in_one_line(
    tmp_path: Path, encoder_for: Make, rows: list[Any], changes: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        _check(_table(tmp_path, rows), encoder_for(**changes))
    assert "\n" not in str(caught.value)


def test_broken_texts_are_left_out_and_the_rest_of_their_batch_is_not(
    tmp_path: Path, encoder_for: Make
) -> None:
    rows = [ROWS[0], {"messages": chat("q", "\ud83d")}, ROWS[0]]
    report = _check(_table(tmp_path, rows), encoder_for()).report
    assert report.samples == 2
    [(reason, count)] = report.dropped.items()
    assert (reason.split(",")[0], count) == ("a text holds half of a surrogate pair", 1)
    assert report.examples[reason].endswith("rows.jsonl:2")


def test_a_report_adds_up_and_survives_json() -> None:
    one = Report(rows=2, samples=1, histogram=Counter({5: 1}), dropped=Counter(x=1), shown="s")
    two = Report(rows=1, samples=2, histogram=Counter({5: 1, 9: 1}))
    both = one.merged(two)
    assert (both.rows, both.samples, both.tokens, both.shown) == (3, 3, 19, "s")
    assert both.lengths == {"median": 5, "p95": 9, "p99": 9, "longest": 9}
    assert Report.from_dict(json.loads(json.dumps(both.to_dict()))) == both
    assert percentiles(Counter(), (50, 100)) == [0, 0]
    for i in range(200):
        both.drop(f"reason {i}", "here")
    assert len(both.dropped) < 60

"""Streams: rows in their order, once, with exact resume; what they cannot do is said."""

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.titan.runs import Run, summary, train
from tests.titan.tiny import tiny
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.inputs import stream
from titan_integration.data.inputs.stream import Lines, open_stream
from titan_integration.data.stream import OdbStreamLoader
from titan_integration.errors import UserError

Batches = list[tuple[Any, Any]]


def streamed(path: str, tokenizer: Path, **odb: Any) -> OdbStreamLoader:
    data = DataConfig(
        path=[path],
        streaming=True,
        odb=OdbConfig(**{"token_budget": 512, "window": 16, "overlong": "drop", **odb}),
    )
    config = OdbStreamLoader.Config(data=data)
    hf: HuggingFaceTokenizer = ChatTokenizer(tokenizer_path=str(tokenizer))
    return OdbStreamLoader(config, dp_world_size=1, dp_rank=0, tokenizer=hf, seq_len=4096)


def taken(loader: OdbStreamLoader, batches: Iterator[Any], count: int) -> Batches:
    found = []
    for inputs, labels in batches:
        found.append((inputs["input"].tolist(), labels.tolist()))
        if len(found) == count:
            break
    return found


@pytest.fixture
def parquet(rows: Path, tmp_path: Path) -> str:
    table = pa.Table.from_pylist([json.loads(line) for line in rows.open()])
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)
    return str(tmp_path / "rows.parquet")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["lines", "gz", "parquet"])
def test_a_stream_goes_on_where_its_state_was_taken(
    tmp_path: Path, rows: Path, parquet: str, tokenizer: Path, kind: str, workers: int
) -> None:
    paths = {"lines": str(rows), "gz": str(tmp_path / "rows.gz"), "parquet": parquet}
    (tmp_path / "rows.gz").write_bytes(gzip.compress(rows.read_bytes()))
    whole = streamed(paths[kind], tokenizer, num_workers=workers)
    expected = taken(whole, iter(whole), -1)
    assert whole.totals.samples + whole.current_totals().num_dropped == 240
    assert whole.exhausted
    whole.close()
    for count in (1, len(expected) // 2, len(expected) - 1):
        first = streamed(paths[kind], tokenizer, num_workers=workers)
        assert taken(first, iter(first), count) == expected[:count]
        state = first.state_dict()
        first.close()
        second = streamed(paths[kind], tokenizer, num_workers=workers)
        second.load_state_dict(state)
        assert taken(second, iter(second), -1) == expected[count:]
        second.close()


def test_the_ranks_share_the_rows_of_a_stream(rows: Path) -> None:
    shares = [list(open_stream([str(rows)], None, rank=r, world_size=3)) for r in range(3)]
    assert [len(share) for share in shares] == [80, 80, 80]
    assert shares[1][0].place == f"{rows}:2"
    assert shares[2][1].place == f"{rows}:6"


def feed(path: Path, raw: bytes) -> threading.Thread:
    os.mkfifo(path)
    thread = threading.Thread(target=path.write_bytes, args=(raw,), daemon=True)
    thread.start()
    return thread


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    raw = b'\xef\xbb\xbf{"a": 1}\r\n\n{"b": "\xe2\x80\xa8"}\nnope\n[2]'
    thread = feed(tmp_path / "pipe", raw)
    found = list(Lines(paths=[str(tmp_path / "pipe")]))
    thread.join()
    assert [item.row for item in found] == [{"a": 1}, {"b": "\u2028"}, None, [2]]
    assert found[2].error == f"{tmp_path}/pipe:4 is not JSON: Expecting value"


def test_lines_are_found_wherever_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [{"n": n, "text": "x" * n} for n in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    for size in (1, 7, 64):
        monkeypatch.setattr(stream, "HEAD", size)
        assert [item.row for item in Lines(paths=[str(path)])] == values


def test_rows_that_give_no_sample_are_counted_and_a_bad_one_ends_the_run(
    tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"prompt": "q", "response": "a"}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [good, {"x": 1}, {"x": 2}, good]))
    loader = streamed(str(path), tokenizer)
    taken(loader, iter(loader), -1)
    assert loader.current_totals().dropped == {"empty": 2}
    assert loader.totals.samples == 2
    assert caplog.text.count("left out") == 1
    assert f"{path}:2" in caplog.text
    loader.close()
    path.write_text(json.dumps(good) + "\n{nope\n" + json.dumps(good) + "\n")
    loader = streamed(str(path), tokenizer)
    with pytest.raises(UserError, match=r"rows\.jsonl:2 is not JSON"):
        taken(loader, iter(loader), -1)
    loader.close()
    loader = streamed(str(path), tokenizer, on_error="skip")
    taken(loader, iter(loader), -1)
    assert loader.totals.samples == 2
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_is_cut_short_is_one_line(
    tmp_path: Path, rows: Path, tokenizer: Path, workers: int
) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(rows.read_bytes())[:-20])
    loader = streamed(str(path), tokenizer, num_workers=workers)
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz is damaged or was cut short") as caught:
        taken(loader, iter(loader), -1)
    assert "\n" not in str(caught.value)
    loader.close()


def _of(**values: Any) -> Callable[[DataConfig], None]:
    def change(data: DataConfig) -> None:
        for name, value in values.items():
            setattr(data, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_of(), r"which a stream does not say: set --data\.sample_quota"),
        (_of(validation_fraction=0.1), r"cannot have data\.validation_fraction"),
        (_of(max_samples=3), r"cannot have data\.max_samples"),
        (_of(path=["-"], epochs=2), r"a pipe can be read once, got data\.epochs 2 for -"),
        (_of(odb=OdbConfig(enable=False)), "needs ODB batches"),
    ],
)
def test_what_a_stream_cannot_do_is_said(
    rows: Path, tokenizer: Path, change: Callable[[DataConfig], None], line: str
) -> None:
    config = tiny()
    config.data.path, config.data.streaming = [str(rows)], True
    config.hf_assets_path = str(tokenizer)
    change(config.data)
    with pytest.raises(UserError, match=line):
        config.validate()


def test_a_pipe_feeds_one_rank_only_and_a_pipe_needs_streaming(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="one data-parallel rank only, got 2"):
        open_stream([str(tmp_path / "pipe")], None, rank=0, world_size=2)
    config = tiny()
    config.data.path = [str(tmp_path / "pipe")]
    with pytest.raises(UserError, match=r"only be streamed: set --data\.streaming"):
        config.data.inputs().open()


def test_a_stream_resumes_on_as_many_ranks_as_saved_it(rows: Path, tokenizer: Path) -> None:
    first = streamed(str(rows), tokenizer)
    taken(first, iter(first), 2)
    state = first.state_dict()
    first.close()
    second = streamed(str(rows), tokenizer)
    second.dp_world_size = 2
    with pytest.raises(UserError, match="as many data-parallel ranks as saved it, 1, got 2"):
        second.load_state_dict(state)
    second.close()


STREAM = ["--data.streaming", "--lr_scheduler.unit", "steps", "--training.steps", "12"]


@pytest.mark.timeout(900)  # three runs of two ranks
def test_two_ranks_train_on_a_stream_and_resume_exactly(
    tmp_path: Path, data_args: list[str]
) -> None:
    args = [*data_args, *STREAM]
    whole = train(tmp_path / "whole", *args, ranks=2)
    killed = Run(tmp_path / "killed", *args, ranks=2)
    killed.wait_for_step(8)
    killed.kill()
    resumed = train(tmp_path / "killed", *args, ranks=2)
    assert summary(tmp_path / "killed")["resumed_from"] is not None
    assert {**resumed.losses} == {
        step: loss for step, loss in whole.losses.items() if step in resumed.losses
    }

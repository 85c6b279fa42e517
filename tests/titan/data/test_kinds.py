"""Files of every kind give their rows, by content; what cannot be read is said in one line."""

import bz2
import gzip
import json
import lzma
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from titan_integration.data.inputs.open import Inputs
from titan_integration.data.sources.cache import Cache
from titan_integration.data.sources.kinds import json_scan
from titan_integration.errors import UserError

ROWS = [{"text": "a"}, {"text": "b\u2028c"}, {"text": "d", "more": [1, {"x": None}]}]
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write(folder: Path, name: str, raw: bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return str(path)


def read(path: str | list[str], **options: Any) -> list[Any]:
    paths = [path] if isinstance(path, str) else path
    cache = Cache(folder=Path(paths[0]).parent / ".cache")
    table = Inputs(paths=paths, cache=cache, **options).open()
    return [table[i] for i in range(len(table))]


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        (b'{"text":"a"}\n{"text":"b"}\n', ["a", "b"]),
        (b'{"text":"a"}\n{"text":"b"}', ["a", "b"]),
        (b'\xef\xbb\xbf{"text":"a"}\r\n\r\n  \n{"text":"b"}\r\n', ["a", "b"]),
        ('{"text":"a\u2028b\u0085c"}\n{"text":"d"}\n'.encode(), ["a\u2028b\u0085c", "d"]),
        (b'\n\n{"text":"a"}', ["a"]),
    ],
    ids=["plain", "no final newline", "BOM, CR and blank lines", "line separators", "one line"],
)
def test_only_a_newline_byte_ends_a_line(tmp_path: Path, raw: bytes, texts: list[str]) -> None:
    assert [row["text"] for row in read(write(tmp_path, "rows.jsonl", raw))] == texts


@given(
    texts=st.lists(st.text(st.sampled_from('a\u00e9\u2028{}[]",\\'), max_size=9), max_size=12),
    blanks=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    block=st.integers(3, 40),
)
def test_lines_are_found_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], blanks: list[int], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("titan_integration.data.sources.lines._BLOCK", block)
        rows = [json.dumps([text], ensure_ascii=False) for text in texts]
        pieces = ["\n" * n + row + "\n" for row, n in zip(rows, blanks, strict=False)]
        path = write(tmp_path_factory.mktemp("rows"), "rows.jsonl", "".join(pieces).encode())
        assert read(path) == ([[text] for text in texts] if len(texts) != 1 else texts)


SHAPES: dict[str, bytes] = {
    "lines": lines(ROWS),
    "list": json.dumps(ROWS).encode(),
    "printed list": json.dumps(ROWS, indent=2, ensure_ascii=False).encode(),
    "list with a BOM": b"\xef\xbb\xbf" + json.dumps(ROWS, indent=1).encode(),
    "data": json.dumps({"version": 1, "data": ROWS, "more": {"a": [1]}}).encode(),
    "printed data": json.dumps({"version": 1, "data": ROWS}, indent=4).encode(),
    "printed objects": "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(),
}


@pytest.mark.parametrize("suffix", ["json", "jsonl", "txt", "data"])
@pytest.mark.parametrize("shape", SHAPES)
def test_json_of_any_shape_is_read_under_any_name(tmp_path: Path, shape: str, suffix: str) -> None:
    assert read(write(tmp_path, f"rows.{suffix}", SHAPES[shape])) == ROWS


@pytest.mark.parametrize("chunk", [5, 64, 1 << 20])
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "lines"])
def test_json_is_walked_through_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, chunk: int
) -> None:
    monkeypatch.setattr(json_scan, "_CHUNK", chunk)
    assert read(write(tmp_path, "rows.json", SHAPES[shape])) == ROWS


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("value", [{"messages": TURNS}, TURNS], ids=["object", "list of turns"])
def test_one_conversation_is_one_row(tmp_path: Path, indent: int | None, value: Any) -> None:
    assert read(write(tmp_path, "rows.json", json.dumps(value, indent=indent).encode())) == [value]


def test_lists_of_turns_are_rows_of_their_own(tmp_path: Path) -> None:
    assert read(write(tmp_path, "rows.jsonl", lines([TURNS, TURNS]))) == [TURNS, TURNS]
    assert read(write(tmp_path, "rows.json", json.dumps([TURNS, TURNS]).encode())) == [TURNS, TURNS]


def test_a_row_with_a_list_of_texts_under_data_is_a_row(tmp_path: Path) -> None:
    row = {"id": 1, "data": ["q", "a"]}
    assert read(write(tmp_path, "rows.json", json.dumps(row, indent=1).encode())) == [row]


def test_an_empty_list_and_an_empty_file_have_no_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path, "rows.json", b" [ ] ")) == []
    assert read(write(tmp_path, "none.jsonl", b"")) == []
    assert read(write(tmp_path, "data.json", b'{"data": []}')) == []


@pytest.mark.parametrize("indent", [None, 2])
def test_a_row_of_a_list_knows_its_line(tmp_path: Path, indent: int | None) -> None:
    raw = json.dumps(["\u00e9[,]", ["x", {"y": 1}], "z"], indent=indent).encode()
    path = write(tmp_path, "rows.json", raw)
    table = Inputs(paths=[path], cache=Cache(folder=tmp_path / "cache")).open()
    assert table.where(1) == f"{path}:{1 if indent is None else 3}"


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("shape", ["lines", "printed list"])
def test_compressed_files_are_what_they_hold(tmp_path: Path, shape: str, suffix: str) -> None:
    packed = COMPRESSIONS[suffix](SHAPES[shape])
    path = write(tmp_path, f"rows.jsonl.{suffix}", packed)
    table = Inputs(paths=[path], cache=Cache(folder=tmp_path / "cache")).open()
    assert [table[i] for i in range(len(table))] == ROWS
    assert table.where(0).startswith(f"{path}:")
    assert list(table.files) == [path]
    if shape == "lines":
        assert read(write(tmp_path, "twice.jsonl", packed + packed)) == ROWS + ROWS


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_compressed_file_that_is_cut_is_said_to_be(tmp_path: Path, suffix: str) -> None:
    packed = COMPRESSIONS[suffix](os.urandom(100_000))[:-20]
    path = write(tmp_path, "rows.jsonl", packed)
    with pytest.raises(UserError, match=r"rows\.jsonl is damaged or was cut short"):
        read(path)
    assert not list((tmp_path / ".cache").glob("*.part"))


TABLE = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "tool", "id": "1"}], "n": 1},
    {"messages": [{"role": "user", "content": "r"}], "n": 2},
]


def arrow(path: Path, kind: str) -> str:
    table = pa.Table.from_pylist(TABLE)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=1)
    else:
        opened = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as out, opened(out, table.schema) as stream:
            stream.write_table(table)
    return str(path)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.json", "rows"])
def test_arrow_rows_have_the_keys_that_they_were_written_with(
    tmp_path: Path, kind: str, name: str
) -> None:
    assert read(arrow(tmp_path / name, kind)) == TABLE


@pytest.mark.parametrize(
    ("name", "raw", "rows"),
    [
        ("r.csv", b'prompt,answer\r\nq,"a\nb"\r\n"x, y",\r\n', [("q", "a\nb"), ("x, y", "")]),
        ("r.csv", b"\xef\xbb\xbfprompt;answer\n007;true\n", [("007", "true")]),
        ("r.tsv", b"prompt\tanswer\nq, r\ta\n", [("q, r", "a")]),
        ("r.csv.bz2", bz2.compress(b"prompt,answer\nq,a\n"), [("q", "a")]),
    ],
)
def test_cells_are_text_as_written(
    tmp_path: Path, name: str, raw: bytes, rows: list[tuple[str, str]]
) -> None:
    assert [tuple(row.values()) for row in read(write(tmp_path, name, raw))] == rows


def test_lists_in_cells_are_read_as_json(tmp_path: Path) -> None:
    cell = json.dumps(TURNS).replace('"', '""')
    assert read(write(tmp_path, "r.csv", f'messages,n\n"{cell}",[1]\n'.encode())) == [
        {"messages": TURNS, "n": "[1]"}
    ]


def test_a_line_of_a_text_file_is_a_row(tmp_path: Path) -> None:
    path = write(tmp_path, "r.txt", b"One, two.\r\n\n  Three.\n")
    assert read(path) == [{"text": "One, two."}, {"text": "  Three."}]


def test_a_saved_dataset_is_read_split_by_split(tmp_path: Path) -> None:
    parts = {name: Dataset.from_list(TABLE[i : i + 1]) for i, name in enumerate(["train", "test"])}
    DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    parts["test"].save_to_disk(str(tmp_path / "one"))
    assert read(str(tmp_path / "both")) == TABLE[:1]
    assert read(str(tmp_path / "both"), split="test") == TABLE[1:]
    assert read(str(tmp_path / "one")) == TABLE[1:]
    with pytest.raises(UserError, match="has the splits train, test, got 'dev'; choose by"):
        read(str(tmp_path / "both"), split="dev")
    with pytest.raises(UserError, match=r"has no splits, got --data\.split test"):
        read(str(tmp_path / "one"), split="test")


def test_a_folder_is_read_in_order_and_split_by_its_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = tmp_path / "data"
    for name, number in (("b.jsonl", 2), ("a.json", 1), ("sub/c.csv", 3)):
        raw = b"text\nx3\n" if name.endswith("csv") else b'{"text": "x%d"}\n' % number
        write(folder, name, raw)
    texts = ["x1", "x2", "x3"]
    assert [row["text"] for row in read(str(folder))] == texts
    assert [row["text"] for row in read(str(folder / "*.json*"))] == texts[:2]
    write(folder, "test-00000.jsonl", b'{"text": "x4"}\n')
    write(folder, "train-00000.jsonl", b'{"text": "x5"}\n')
    assert [row["text"] for row in read(str(folder))] == ["x5"]
    assert "reading the split train; 4 files are no part of it (as a.json)" in caplog.text
    assert [row["text"] for row in read(str(folder), split="test")] == ["x4"]
    with pytest.raises(UserError, match="has the splits train, test, got 'dev'"):
        read(str(folder), split="dev")


def test_files_of_no_known_kind_in_a_folder_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "data", "a.jsonl", b"{}\n{}\n")
    write(tmp_path / "data", "b.png", b"\x89PNG\r\n")
    assert len(read(str(tmp_path / "data"))) == 2
    assert "1 files of" in caplog.text
    assert "b.png" in caplog.text


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("r.jsonl", b"1\n\n{nope}\n", r"r\.jsonl:3 is not JSON: Expecting property name"),
        ("r.jsonl", b'1\n"\xff"\n', r"r\.jsonl:2 is not UTF-8 text"),
        ("r.jsonl", b"hello\nworld\n", r"r\.jsonl:1 is not JSON"),
        ("r.jsonl", b"[" * 100_000 + b"\n1\n", "nested too deep"),
        ("r.json", b'{"a": 1,\n "b": nope}', r"r\.json:2 is not JSON: Expecting value"),
        ("r.json", b'[{"a": 1},\n {"b": "unt', r"r\.json:2 is not JSON: Unterminated"),
        ("r.json", b'[{"a": 1}\n {"b": 1}]', r"r\.json:2 is not JSON: ',' expected"),
        ("r.json", b'[{"a": 1}] x', "text after the end of the list"),
        ("r.json", b'{"a":\n"\xe9"}', r"r\.json:[12] is not UTF-8"),
        ("r.parquet", b"PAR1 and then nothing", "cannot read .*r.parquet: Parquet"),
        ("r.arrow", b"ARROW1 and then nothing", "cannot read .*r.arrow"),
        ("r", b"\xff\xff\xff\xff\x10\x00\x00\x00xx", "cannot read .*r: "),
        ("r.csv", b"a,b\n1,2,3\n", "cannot read .*r.csv: CSV parse error: .*Expected 2 columns"),
        ("r.csv", b"a,a\n1,2\n", "must name each column once, got 'a' twice"),
        ("r.csv", b"a\n\xe9\n", "invalid UTF8"),
        ("r.txt", b"\xff\xfea\x00", "is UTF-16 text"),
        ("r.xlsx", b"PK\x03\x04", "is a zip archive"),
        ("r.jinja", b"{% for m in messages %}", "cannot tell what .*r.jinja is"),
        ("r.bin", b"\x00\x01hello", "cannot tell what .*r.bin is, which begins with 'hello'"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, name: str, raw: bytes, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(write(tmp_path, name, raw))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for path, message in (
        (str(tmp_path / "none.jsonl"), "which is not there"),
        (str(tmp_path / "*.jsonl"), "which matches no file"),
        ("none.jsonl", "which is not there"),
    ):
        with pytest.raises(UserError, match=message):
            Inputs(paths=[path]).check()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no file to read rows from"):
        read(str(tmp_path / "empty"))


def test_a_name_that_the_hub_does_not_give_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    inputs = Inputs(paths=["nobody/nothing"], cache=Cache(folder=tmp_path))
    inputs.check()
    with pytest.raises(UserError, match="nobody/nothing is no file or folder here") as caught:
        inputs.open()
    assert "\n" not in str(caught.value)


def test_rows_travel_to_worker_processes(tmp_path: Path) -> None:
    for path in (write(tmp_path, "r.jsonl", lines(ROWS)), arrow(tmp_path / "r.parquet", "parquet")):
        table = Inputs(paths=[path], cache=Cache(folder=tmp_path / "cache")).open()
        first = table[0]
        assert pickle.loads(pickle.dumps(table))[0] == first


def test_a_file_that_shrinks_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "r.jsonl", lines(ROWS))
    table = Inputs(paths=[path], cache=Cache(folder=tmp_path / "cache")).open()
    os.truncate(path, 20)
    with pytest.raises(UserError, match=r"r\.jsonl had \d+ bytes when .* and has 20 now"):
        table[2]


def test_a_file_that_grows_is_named_once_and_its_rows_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "r.jsonl", lines(ROWS))
    table = Inputs(paths=[path], cache=Cache(folder=tmp_path / "cache")).open()
    with open(path, "ab") as file:
        file.write(b'{"text": "new"}\n')
    assert [table[i] for i in range(len(table))] == ROWS
    assert caplog.text.count("r.jsonl has grown") == 1


def test_a_changed_file_is_not_read_through_its_old_index(tmp_path: Path) -> None:
    path = write(tmp_path, "r.jsonl", b'{"a": 1}\n{"b": 2}\n')
    assert read(path) == [{"a": 1}, {"b": 2}]
    write(tmp_path, "r.jsonl", b'{"a":123}\n{"b":2}\n')
    assert read(path) == [{"a": 123}, {"b": 2}]


def test_fingerprints_tell_of_names_and_content_but_not_of_folders(tmp_path: Path) -> None:
    def fingerprint(name: str, raw: bytes) -> str:
        path = write(tmp_path, name, raw)
        return Inputs(paths=[path], cache=Cache(folder=tmp_path / "cache")).open().fingerprint()

    same = fingerprint("a/r.jsonl", lines(ROWS))
    assert fingerprint("b/r.jsonl", lines(ROWS)) == same
    assert fingerprint("a/s.jsonl", lines(ROWS)) != same
    assert fingerprint("a/r.jsonl", lines(ROWS[::-1])) != same
    large = b'{"text": "%s"}\n' % (b"x" * (9 << 20))
    before = fingerprint("large.jsonl", large)
    assert fingerprint("large.jsonl", large[:-5] + b"y" + large[-4:]) != before
    assert fingerprint("large.jsonl", large[:20] + b"y" + large[21:]) != before


def test_a_cache_that_cannot_be_written_is_said_where_it_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(folder=Path(write(tmp_path, "file", b"")) / "cache")
    plain = write(tmp_path, "r.jsonl", lines(ROWS))
    table = Inputs(paths=[plain], cache=cache).open()
    assert [table[i] for i in range(len(table))] == ROWS
    assert "keeping the index" in caplog.text
    packed = write(tmp_path, "r.gz", gzip.compress(lines(ROWS)))
    with pytest.raises(UserError, match=r"cannot write .*--data\.cache_dir"):
        Inputs(paths=[packed], cache=cache).open()


def test_a_dataset_of_the_hub_is_opened_by_name_configuration_and_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None, str | None]] = []

    def load(path: str, name: str | None, split: str | None) -> Dataset:
        asked.append((path, name, split))
        return Dataset.from_list(TABLE)

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.setattr("datasets.get_dataset_split_names", lambda path, name: ["test", "train"])
    inputs = Inputs(mix=["owner/set:main:2", "owner/set:other"], cache=Cache(folder=tmp_path))
    inputs.check()
    assert len(inputs.open()) == 6
    read(["squad"], split="train[:10%]")
    assert asked == [
        ("owner/set", "main", "train"),
        ("owner/set", "other", "train"),
        ("squad", None, "train[:10%]"),
    ]

"""Rows of files by index: only newlines end a line, and errors name file and line."""

import json
import pickle
from pathlib import Path

import pytest

from titan_integration.data.rows import Rows
from titan_integration.errors import UserError


def _write(folder: Path, name: str, raw: bytes) -> str:
    path = folder / name
    path.write_bytes(raw)
    return str(path)


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        (b'{"text":"a"}\n{"text":"b"}\n', ["a", "b"]),
        (b'{"text":"a"}\n{"text":"b"}', ["a", "b"]),
        (b'\xef\xbb\xbf{"text":"a"}\r\n\r\n  \n{"text":"b"}\r\n', ["a", "b"]),
        ('{"text":"a\u2028b\u0085c"}\n{"text":"d"}\n'.encode(), ["a\u2028b\u0085c", "d"]),
    ],
    ids=["plain", "no final newline", "BOM, CR and blank lines", "unicode line separators"],
)
def test_only_a_newline_byte_ends_a_line(tmp_path: Path, raw: bytes, texts: list[str]) -> None:
    rows = Rows([_write(tmp_path, "rows.jsonl", raw)])
    assert [rows[i]["text"] for i in range(len(rows))] == texts


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_list_gives_its_elements_and_their_lines(tmp_path: Path, indent: int | None) -> None:
    values = [{"text": "\u00e9[,]"}, ["x", {"y": 1}], "z"]
    raw = json.dumps(values, indent=indent, ensure_ascii=False).encode()
    rows = Rows([_write(tmp_path, "rows.json", raw)])
    assert [rows[i] for i in range(len(rows))] == values
    assert rows.where(1).endswith(":1" if indent is None else ":5")


def test_an_empty_json_list_has_no_rows(tmp_path: Path) -> None:
    assert len(Rows([_write(tmp_path, "rows.json", b" [ ] ")])) == 0


def test_lines_in_a_json_file_are_read_as_lines(tmp_path: Path) -> None:
    assert len(Rows([_write(tmp_path, "rows.json", b'{"a":1}\n{"a":2}\n')])) == 2


def test_files_follow_one_another_up_to_the_limit(tmp_path: Path) -> None:
    paths = [_write(tmp_path, f"{n}.jsonl", b"[%d]\n[%d]\n" % (n, n + 1)) for n in (0, 10, 20)]
    rows = Rows(paths, max_rows=5)
    assert [rows[i][0] for i in range(len(rows))] == [0, 1, 10, 11, 20]
    with pytest.raises(IndexError, match="row must be in"):
        rows[5]


@pytest.mark.parametrize("bad", [b"{nope}", b'"\xff"'])
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, bad: bytes) -> None:
    rows = Rows([_write(tmp_path, "rows.jsonl", b"1\n\n" + bad + b"\n")])
    with pytest.raises(UserError, match=r"rows\.jsonl:3 is not JSON"):
        rows[1]


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read data file"):
        Rows([str(tmp_path / "none.jsonl")])


def test_rows_travel_to_worker_processes(tmp_path: Path) -> None:
    rows = Rows([_write(tmp_path, "rows.jsonl", b"[1]\n[2]\n")])
    assert rows[0] == [1]
    assert pickle.loads(pickle.dumps(rows))[1] == [2]

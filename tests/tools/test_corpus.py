"""The corpus tool: what it reads, what it writes, and that its tokenizer suits training."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tools import corpus
from tools.data.chat_tokenizer import (
    SPECIAL_TOKENS,
    token_lengths,
    tokenizer_files,
    train_tokenizer,
)
from tools.data.docstrings import Docstring, Root, read_docstrings, source_files

INIT = '''"""A package that must never run."""
raise RuntimeError("imported")
'''
SHAPES = '''
import sys

class Square(Shape, metaclass=Meta):
    """Four equal sides."""

    async def area(self, scale: float = 1.0, *, unit="m") -> float:
        """Side times side.

            Indented
        on purpose.
        """
        def local():
            """Not reachable by name."""

try:
    from fast import corners
except ImportError:
    if sys.maxsize:
        def corners(n):
            """Four equal sides."""

def undocumented():
    return 1
'''
TEMPLATE = '''"""Does not parse."""
def {{ name }}(): pass
'''
SIGNATURES = {
    "module fixture": "A package that must never run.",
    "class fixture.shapes.Square(Shape, metaclass=Meta)": "Four equal sides.",
    "async def fixture.shapes.Square.area(self, scale: float=1.0, *, unit='m') -> float": (
        "Side times side.\n\n    Indented\non purpose."
    ),
    "def fixture.shapes.corners(n)": "Four equal sides.",
}


@pytest.fixture
def roots(tmp_path: Path) -> list[Root]:
    package = tmp_path / "fixture"
    for name, text in {
        "__init__.py": INIT,
        "shapes.py": SHAPES,
        "template.py": TEMPLATE,
        "not-importable.py": '"""Not an identifier."""',
        "tests/test_shapes.py": '"""In a folder of tests."""',
        "site-packages/other.py": '"""Another distribution."""',
        "many.py": "".join(f"def f{i}():\n    '''Return {i} * {i}.'''\n" for i in range(200)),
    }.items():
        (package / name).parent.mkdir(exist_ok=True, parents=True)
        (package / name).write_text(text)
    return [Root(prefix="fixture", path=package)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["def area(self) -> float", "Side times side.\n\n    Indented."] * 20)


def inputs(**changes: int) -> corpus.Inputs:
    return corpus.Inputs(python="3.11", torch="2.14", **changes)


def all_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def read_rows(path: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    assert all([m["role"] for m in row] == ["user", "assistant"] for row in rows)
    return [(row[0]["content"], row[1]["content"]) for row in rows]


def test_docstrings_come_with_qualified_signatures_and_without_an_import(
    roots: list[Root],
) -> None:
    files = [file for file in source_files(roots) if file.module != "fixture.many"]
    found = list(read_docstrings(files))
    docstrings = {doc.signature: doc.text for docs in found if docs for doc in docs}
    assert docstrings == SIGNATURES
    assert found.count(None) == 1, "the template does not parse and is skipped"
    assert not any(name.split(".")[0] == "fixture" for name in sys.modules)


@pytest.mark.parametrize(("max_files", "modules"), [(1, 1), (3, 3), (99, 4)])
def test_max_files_bounds_the_files_read(roots: list[Root], max_files: int, modules: int) -> None:
    files = source_files(roots, max_files=max_files)
    assert len(files) == modules
    assert files == [file for file in source_files(roots) if file in files]


def test_each_docstring_appears_once_under_its_first_signature() -> None:
    docs = [Docstring(signature=f"def f{i}()", text=text) for i, text in enumerate("abacb")]
    rows = corpus.select_rows(docs)
    contents = [tuple(message["content"] for message in row["messages"]) for row in rows]
    assert contents == [("def f0()", "a"), ("def f1()", "b"), ("def f3()", "c")]


@pytest.mark.parametrize("text", ["Lone \ud800 surrogate.", "Ends a turn: <|end|>"])
def test_text_the_chat_template_cannot_carry_is_left_out(text: str) -> None:
    assert corpus.select_rows([Docstring(signature="def f()", text=text)]) == []


def test_limit_keeps_an_even_sample_in_order() -> None:
    docs = [Docstring(signature=f"def f{i}()", text=f"Text {i}.") for i in range(1000)]
    everything, some = corpus.select_rows(docs), corpus.select_rows(docs, limit=100)
    assert len(some) == 100
    positions = [everything.index(row) for row in some]
    assert positions == sorted(positions)
    assert 30 < sum(position < 500 for position in positions) < 70


def test_two_builds_write_the_same_bytes_whatever_the_number_of_processes(
    roots: list[Root], tmp_path: Path
) -> None:
    outs = [tmp_path / "one", tmp_path / "two"]
    for jobs, out in enumerate(outs, start=1):
        corpus.build(out, roots=roots, inputs=inputs(), jobs=jobs)
    assert all_files(outs[0]) == all_files(outs[1])
    assert set(all_files(outs[0])) == {corpus.META, *corpus.OUTPUTS}


def test_held_out_rows_are_kept_apart_from_training_rows(roots: list[Root], tmp_path: Path) -> None:
    meta = corpus.build(tmp_path, roots=roots, inputs=inputs())
    train, heldout = (read_rows(tmp_path / f"{name}.jsonl") for name in ("corpus", "heldout"))
    assert (len(train), len(heldout)) == (meta["rows"], meta["heldout_rows"])
    assert 0 < len(heldout) < len(train)
    assert not {text for _, text in train} & {text for _, text in heldout}
    assert len(train) + len(heldout) == len(set(SIGNATURES.values())) + 200


def test_a_folder_without_docstrings_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found no docstring to train on in 0 files"):
        corpus.build(tmp_path, roots=[Root(prefix="", path=tmp_path)], inputs=inputs())


@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_tokenizer_round_trips_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text or any(
        token in text for token in SPECIAL_TOKENS
    )


@pytest.mark.slow
def test_tokenizer_round_trips_the_corpus(roots: list[Root], tmp_path: Path) -> None:
    corpus.build(tmp_path, roots=roots, inputs=inputs())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    for text in (text for row in read_rows(tmp_path / "corpus.jsonl") for text in row):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_prompt_is_a_prefix_of_its_conversation_for_torchtitan(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    titan = pytest.importorskip("torchtitan.components.tokenizer")
    for name, text in tokenizer_files(tokenizer).items():
        (tmp_path / name).write_text(text)
    loaded = titan.HuggingFaceTokenizer(tokenizer_path=str(tmp_path))
    messages = [
        {"role": "user", "content": "def area(self) -> float "},
        {"role": "assistant", "content": "  Side times side.\n"},
    ]
    prompt = loaded.encode(loaded.apply_chat_template(messages[:1], add_generation_prompt=True))
    whole = loaded.encode(loaded.apply_chat_template(messages))
    assert whole[: len(prompt)] == prompt
    assert (whole[0], whole[-1]) == (loaded.bos_id, loaded.eos_id)
    assert loaded.decode(whole[len(prompt) : -1]) == messages[1]["content"]
    assert loaded.token_to_id("<|pad|>") == 0
    assert list(token_lengths([{"messages": messages}], tokenizer)) == [len(whole)]


def test_a_second_call_does_nothing_until_an_input_changes(
    roots: list[Root],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(corpus, "installed_roots", lambda: roots)
    monkeypatch.setattr(corpus, "MAX_JOBS", 1)
    out = tmp_path / "deep" / "out"
    assert corpus.main(["--out", str(out)]) == 0
    assert "wrote" in capsys.readouterr().out
    stamps = {name: (out / name).stat().st_mtime_ns for name in corpus.OUTPUTS}

    assert corpus.main(["--out", str(out)]) == 0
    assert "is up to date, nothing to do" in capsys.readouterr().out
    assert stamps == {name: (out / name).stat().st_mtime_ns for name in corpus.OUTPUTS}

    assert corpus.main(["--out", str(out), "--limit", "20"]) == 0
    assert len(read_rows(out / "corpus.jsonl")) + len(read_rows(out / "heldout.jsonl")) == 20
    (out / "heldout.jsonl").unlink()
    capsys.readouterr()
    assert corpus.main(["--out", str(out), "--limit", "20"]) == 0
    assert "wrote" in capsys.readouterr().out


@pytest.mark.parametrize("record", ["", "7", "{}", '{"tool": 1}'])
def test_a_damaged_record_leads_to_a_new_build(tmp_path: Path, record: str) -> None:
    (tmp_path / corpus.META).write_text(record)
    assert corpus.current_meta(tmp_path, inputs()) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a-file"], "--out must be a folder, got a-file: File exists"),
        (["--out", "a-file/below"], "--out must be a folder, got a-file/below: Not a directory"),
        (["--out", "out", "--limit", "0"], "--limit must be positive, got 0"),
        (["--out", "out", "--max-files", "-1"], "--max-files must be positive, got -1"),
    ],
)
def test_bad_input_ends_with_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    assert corpus.main(arguments) == 2
    assert capsys.readouterr().err == f"corpus: error: {message}\n"

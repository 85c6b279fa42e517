"""The measures of the house: small functions, short modules, nothing written twice."""

import ast
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    name
    for name in ("odb_nodes", "titan_integration", "hf_integration", "configs", "tools", "tests")
    if (ROOT / name).exists()
]
MEDIAN, NINE_IN_TEN, LONGEST = 8, 20, 60  # lines of a function
ENOUGH = 50  # functions of a package for which a median says something
MODULE = 350  # lines
BLOCK = 6  # lines that may not stand anywhere else
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def lines_of(node: ast.AST) -> range:
    """Numbers of the lines of a node, its decorators left out."""
    assert isinstance(node, ast.stmt | ast.expr)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def docstring_of(node: ast.AST) -> range:
    """Lines of a docstring; none if there is none."""
    body = getattr(node, "body", None)
    if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
        return range(0)
    value = body[0].value
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return lines_of(value) if is_text else range(0)


def functions(package: str) -> Iterator[tuple[str, Function]]:
    for path in files(package):
        for node in ast.walk(parsed(path)):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def size(node: Function) -> int:
    """Lines of a function but for its docstring, which may be as long as it likes."""
    return len(lines_of(node)) - len(docstring_of(node))


def size_of_body(node: Function) -> int:
    """Lines of its statements alone: a public function may have many parameters, a line each."""
    return size(node) - (node.body[0].lineno - node.lineno)


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_short(package: str) -> None:
    found = dict(functions(package))
    assert not [name for name, node in found.items() if size_of_body(node) > LONGEST]
    if len(found) >= ENOUGH:
        by_size = sorted(found, key=lambda name: size(found[name]))
        assert statistics.median(map(size, found.values())) <= MEDIAN
        tenth = by_size[int(0.9 * len(by_size))]
        assert size(found[tenth]) <= NINE_IN_TEN, f"the longest tenth begins at {tenth}"


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "tests"])
def test_modules_are_short(package: str) -> None:
    lengths = {str(path): len(path.read_text().splitlines()) for path in files(package)}
    assert not {path: length for path, length in lengths.items() if length > MODULE}


def passed_over(tree: ast.Module) -> Iterator[int]:
    """Lines that may stand in several places: imports, and parameters with a line each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from lines_of(node)
        elif isinstance(node, Function):
            yield from range(node.lineno + 1, node.body[0].lineno)


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Number and text of the lines that count."""
    skipped = set(passed_over(parsed(path)))
    numbered = enumerate(map(str.strip, path.read_text().splitlines()), 1)
    return [
        (number, line)
        for number, line in numbered
        if number not in skipped and not line.startswith("#") and any(map(str.isalnum, line))
    ]


def repeated(paths: list[Path]) -> list[list[str]]:
    """Places that share a block of ``BLOCK`` lines, each pair of files once."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in paths:
        lines = code_lines(path)
        for start in range(len(lines) - BLOCK + 1):
            block = tuple(line for _, line in lines[start : start + BLOCK])
            places[block].append(f"{path.relative_to(ROOT)}:{lines[start][0]}")
    return [found for found in places.values() if len(found) > 1]


def test_no_block_of_lines_stands_twice() -> None:
    assert repeated([path for package in PACKAGES for path in files(package)]) == []


def test_a_block_that_stands_twice_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    body = "".join(f"    x{line} = {line}\n" for line in range(BLOCK - 1))
    for name, skipped in (("a.py", ""), ("b.py", "    # another comment\n\n")):
        (tmp_path / name).write_text(f"def f():\n{skipped}{body}")
    found = repeated([tmp_path / "a.py", tmp_path / "b.py"])
    assert found == [["a.py:1", "b.py:1"]]

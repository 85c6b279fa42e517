"""What this package relies on in torchtitan, case by case.

On a newer version, the cases that fail list what to change: nothing is imported before its case.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.titan import contract
from titan_integration import upstream

ROOT = Path(__file__).parents[2]
OURS = ("titan_integration", "configs", "tools")


def look_up(path: str) -> Any:
    """``Trainer.train_step``, or ``torchtitan.config:ParallelismConfig``."""
    module, colon, rest = path.rpartition(":")
    first, *names = rest.split(".")
    owner = upstream.find(*((module, first) if colon else upstream.relied_on()[first]))
    return reduce(getattr, names, owner)


def cases(table: contract.Table) -> list[tuple[str, str]]:
    return [(path, name) for path, names in table.items() for name in names]


def changed(path: str, what: str, *words: str) -> str:
    """The message of a case that fails: what is new, and which of our lines rely on the old."""
    places = [
        f"{file.relative_to(ROOT)}:{number}"
        for folder in OURS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if any(re.search(rf"\b{re.escape(word)}\b", line) for word in words)
    ]
    return f"torchtitan {version('torchtitan')}: {path} {what}; see {', '.join(places) or 'nobody'}"


@pytest.mark.parametrize("name", upstream.relied_on())
def test_a_name_is_where_it_was(name: str) -> None:
    module, there = upstream.relied_on()[name]
    try:
        upstream.find(module, there)
    except ImportError:
        pytest.fail(changed(f"{module}.{there}", "is gone", name), pytrace=False)


@pytest.mark.parametrize(("path", "field"), cases(contract.FIELDS))
def test_a_configuration_has_the_field(path: str, field: str) -> None:
    got = [f.name for f in fields(look_up(path))]
    assert field in got, changed(path, f"has no field {field!r} among {got}", field)


@pytest.mark.parametrize("path", contract.PARAMETERS)
def test_what_is_overridden_or_called_by_position_takes_what_it_took(path: str) -> None:
    got = tuple(inspect.signature(look_up(path)).parameters)
    assert got == contract.PARAMETERS[path], changed(path, f"takes {got}", path.split(".")[-1])


@pytest.mark.parametrize(("path", "keyword"), cases(contract.KEYWORDS))
def test_what_is_called_takes_the_keyword(path: str, keyword: str) -> None:
    got = list(inspect.signature(look_up(path)).parameters)
    assert keyword in got, changed(path, f"takes {got} but no {keyword!r}", keyword)


@pytest.mark.parametrize(("path", "attribute"), cases(contract.ATTRIBUTES))
def test_an_object_has_the_attribute(path: str, attribute: str) -> None:
    owner = look_up(path)
    has = hasattr(owner, attribute) or attribute in _set_by(owner)
    assert has, changed(path, f"has no attribute {attribute!r}", attribute)


def _set_by(owner: type) -> set[str]:
    """Attributes that a class, or one below it, sets on ``self`` or annotates in its body."""
    found: set[str] = set()
    for cls in owner.__mro__[:-1]:
        for node in ast.walk(_parsed(cls)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found


def _parsed(thing: Any) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError):  # A class that is built in.
        return ast.Module(body=[], type_ignores=[])


@pytest.mark.parametrize(("place", "keyword"), cases(contract.BUILD_KEYWORDS))
def test_a_loader_is_built_with_the_keyword(place: str, keyword: str) -> None:
    path, target = place.split()
    [call] = _assigned_calls(_parsed(look_up(path)), target)
    got = [argument.arg for argument in call.keywords]
    assert keyword in got, changed(path, f"builds its loader with {got}, no {keyword!r}", keyword)


def _assigned_calls(tree: ast.AST, target: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and target in map(ast.unparse, node.targets):
            assert isinstance(node.value, ast.Call)
            yield node.value


@pytest.mark.parametrize(("path", "line"), cases(contract.LINES))
def test_the_line_that_an_override_hooks_into_is_still_there(path: str, line: str) -> None:
    source = inspect.getsource(look_up(path))
    assert line in source, changed(path, f"no longer has {line!r}", path.split(".")[-1])


def _overrides() -> Iterator[str]:
    """Methods of torchtitan's classes that classes of ours replace, as paths."""
    for file in sorted((ROOT / "titan_integration").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            for base in map(ast.unparse, node.bases):
                if base in upstream.relied_on():
                    ours = getattr(importlib.import_module(module), node.name)
                    yield from (f"{base}.{name}" for name in _methods(ours, look_up(base)))


def _methods(ours: type, theirs: type) -> Iterator[str]:
    for name, value in vars(ours).items():
        if inspect.isfunction(value) and hasattr(theirs, name) and not hasattr(object, name):
            yield name


def test_every_method_that_is_overridden_is_in_the_contract() -> None:
    listed = contract.PARAMETERS.keys() | contract.KEYWORDS.keys()
    assert set(_overrides()) <= listed


NEWER = """
import dataclasses
from torchtitan import config, trainer
from torchtitan.components import validate

@dataclasses.dataclass
class TrainingConfig:
    max_context_length: int = 0

config.TrainingConfig = TrainingConfig
trainer.Trainer.train_step = lambda self, batches: None
del validate.Validator
"""


@pytest.mark.slow
def test_a_newer_torchtitan_makes_those_cases_fail_that_it_changed(tmp_path: Path) -> None:
    (tmp_path / "newer.py").write_text(NEWER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "newer", "-n", "0", "-rfE", f"{__file__}"]
        + ["-k", "TrainingConfig or train_step or Validator or Linear"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    text = "\n".join(lines)
    for case in ("TrainingConfig-seq_len", "Trainer.train_step", "[Validator]"):
        assert case in text
    assert "Linear" not in text
    assert "ERROR" not in text
    assert re.search(
        r"has no field 'seq_len' .*titan_integration/training/\w+\.py:\d+", done.stdout
    )

"""Docstrings of installed Python code, read by parsing source files: nothing is imported."""

import ast
import gc
import hashlib
import importlib.util
import os
import signal
import sysconfig
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path

# Some distributions ship Python without its own tests; without them the corpus is alike on all.
SKIPPED_FOLDERS = {"__pycache__", "test", "tests", "idle_test"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Compound = ast.If | ast.Try | ast.With | ast.ExceptHandler


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A folder of source files; ``prefix`` is the dotted name of the package it is, "" if none."""

    prefix: str
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file of a root and the dotted name it would be imported by."""

    module: str
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Docstring:
    """A signature with its qualified name, and the cleaned docstring found under it."""

    signature: str
    text: str


def installed_roots() -> list[Root]:
    """The standard library and the torch package of the running interpreter.

    Raises:
        ValueError: torch is not installed.
    """
    # A top-level name is only located by this, not imported.
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("torch is not installed in this Python: run `make setup` first")
    return [
        Root(prefix="", path=Path(sysconfig.get_paths()["stdlib"])),
        Root(prefix="torch", path=Path(spec.submodule_search_locations[0])),
    ]


def source_files(roots: Sequence[Root], *, max_files: int | None = None) -> list[SourceFile]:
    """The importable files of all roots, sorted within each root; all, or evenly spaced ones."""
    files = [file for root in roots for file in _root_files(root)]
    if max_files is None or max_files >= len(files):
        return files
    return [files[i * len(files) // max_files] for i in range(max_files)]


def _root_files(root: Root) -> list[SourceFile]:
    found = []
    for folder, subfolders, names in os.walk(root.path):
        # Not an identifier, so not importable by name: site-packages, config-3.11, lib-dynload.
        subfolders[:] = [s for s in subfolders if s.isidentifier() and s not in SKIPPED_FOLDERS]
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py" and path.stem.isidentifier():
                found.append(SourceFile(module=_module_name(root, path), path=path))
    return sorted(found, key=lambda file: file.path.relative_to(root.path).as_posix())


def _module_name(root: Root, path: Path) -> str:
    parts = [root.prefix, *path.relative_to(root.path).with_suffix("").parts]
    return ".".join(part for part in parts if part and part != "__init__")


def read_docstrings(
    files: Sequence[SourceFile], *, jobs: int = 1
) -> Iterator[list[Docstring] | None]:
    """Yield each file's docstrings, in the order of ``files`` whatever the number of ``jobs``."""
    if jobs == 1:
        yield from map(file_docstrings, files)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_start_worker
    ) as pool:
        yield from pool.map(file_docstrings, files, chunksize=16)


def _start_worker() -> None:
    # Syntax trees hold no cycles: the collector would only walk them in vain.
    gc.disable()
    # The parent handles Ctrl-C; a worker would only add its own stack trace.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()  # a parent that is killed would leave its workers waiting for each other
    os._exit(1)


def file_docstrings(file: SourceFile) -> list[Docstring] | None:
    """Docstrings of the module, its classes, methods and functions; None if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        # Installed code holds files for other Python versions and templates.
        return None
    return list(_node_docstrings(tree, file.module))


def _node_docstrings(node: ast.Module | Definition, name: str) -> Iterator[Docstring]:
    text = ast.get_docstring(node)
    if text:
        yield Docstring(signature=_signature(node, name), text=text)
    if not isinstance(node, Function):
        for child in _definitions(node.body):
            yield from _node_docstrings(child, f"{name}.{child.name}")


def _definitions(body: Sequence[ast.AST]) -> Iterator[Definition]:
    """Classes and functions of a body, those under its if, try and with statements included."""
    for node in body:
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, Compound):
            for field in ("body", "handlers", "orelse", "finalbody"):
                yield from _definitions(getattr(node, field, ()))


def _signature(node: ast.Module | Definition, name: str) -> str:
    if isinstance(node, ast.Module):
        return f"module {name}"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in [*node.bases, *node.keywords])
        return f"class {name}({bases})" if bases else f"class {name}"
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{keyword} {name}({ast.unparse(node.args)}){returns}"


def stable_hash(text: str) -> int:
    """The same 64-bit number for the same text in every process and on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

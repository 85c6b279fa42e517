"""Build the default training data from docstrings of installed code, and a tokenizer for it.

Writes corpus.jsonl, heldout.jsonl, tokenizer/ and corpus.meta.json; builds nothing again while
they are up to date. Nothing is downloaded and none of the code that is read gets imported.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from tools.data.chat_tokenizer import (
    can_be_encoded,
    token_lengths,
    tokenizer_files,
    train_tokenizer,
)
from tools.data.docstrings import (
    Docstring,
    Root,
    installed_roots,
    read_docstrings,
    source_files,
    stable_hash,
)

TOOL_VERSION = 1
HELDOUT_ONE_IN = 50
MAX_JOBS = 8
META = "corpus.meta.json"
OUTPUTS = (
    "corpus.jsonl",
    "heldout.jsonl",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
)

Row = dict[str, list[dict[str, str]]]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What the outputs depend on; the meta file records it, to tell when to build again."""

    tool: int = TOOL_VERSION
    python: str
    torch: str
    limit: int | None = None
    max_files: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("--limit", self.limit), ("--max-files", self.max_files)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be positive, got {value}")


def progress(items: Iterable[T], *, total: int, label: str) -> Iterator[T]:
    """Pass items on; shows a bar on a terminal and ten plain lines elsewhere, both on stderr."""
    if sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=label)
        return
    for done, item in enumerate(items, start=1):
        yield item
        if done * 10 // total > (done - 1) * 10 // total:
            print(f"{label}: {done}/{total}", file=sys.stderr, flush=True)


def select_rows(docstrings: Iterable[Docstring], *, limit: int | None = None) -> list[Row]:
    """Rows in the given order, each docstring once; with ``limit``, an even sample of them."""
    first: dict[str, Docstring] = {}
    for doc in docstrings:
        if can_be_encoded(doc.signature) and can_be_encoded(doc.text):
            first.setdefault(doc.text, doc)
    if limit is not None and limit < len(first):
        kept = set(sorted(first, key=stable_hash)[:limit])
        first = {text: doc for text, doc in first.items() if text in kept}
    return [_row(doc) for doc in first.values()]


def _row(doc: Docstring) -> Row:
    user = {"role": "user", "content": doc.signature}
    return {"messages": [user, {"role": "assistant", "content": doc.text}]}


def split_rows(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Training rows and held-out rows; which one a row is depends on its docstring alone."""
    train: list[Row] = []
    heldout: list[Row] = []
    for row in rows:
        is_heldout = stable_hash(row["messages"][1]["content"]) % HELDOUT_ONE_IN == 0
        (heldout if is_heldout else train).append(row)
    return train, heldout


def length_stats(lengths: Iterable[int]) -> dict[str, float]:
    """Mean, coefficient of variation, percentiles, maximum and sum, in tokens."""
    ordered = sorted(lengths)
    mean = statistics.fmean(ordered)
    stats = {"mean": round(mean, 1), "cv": round(statistics.pstdev(ordered) / mean, 3)}
    for percent in (50, 90, 99):
        stats[f"p{percent}"] = ordered[(len(ordered) - 1) * percent // 100]
    return stats | {"max": ordered[-1], "total": sum(ordered)}


def build(out: Path, *, roots: Sequence[Root], inputs: Inputs, jobs: int = 1) -> dict[str, Any]:
    """Write all outputs below ``out`` and return what the meta file records.

    Args:
        out: Folder for rows, tokenizer and meta file; made if it is not there.
        roots: Where source files are looked for.
        inputs: What the outputs depend on beside the files.
        jobs: Processes that parse; the outputs do not depend on it.
    Raises:
        ValueError: No docstring to train on was found.
    """
    files = source_files(roots, max_files=inputs.max_files)
    reading = read_docstrings(files, jobs=jobs)
    found = list(progress(reading, total=len(files), label="reading files"))
    docstrings = (doc for docs in found if docs is not None for doc in docs)
    rows, heldout = split_rows(select_rows(docstrings, limit=inputs.limit))
    if not rows:
        raise ValueError(f"found no docstring to train on in {len(files)} files")
    print(f"training the tokenizer on {len(rows)} rows", file=sys.stderr, flush=True)
    tokenizer = train_tokenizer(m["content"] for row in rows for m in row["messages"])
    lengths = progress(token_lengths(rows, tokenizer), total=len(rows), label="counting tokens")
    meta = asdict(inputs) | {
        "rows": len(rows),
        "heldout_rows": len(heldout),
        "files": len(files),
        "unreadable_files": found.count(None),
        "tokens": length_stats(lengths),
    }
    contents = {"corpus.jsonl": _jsonl(rows), "heldout.jsonl": _jsonl(heldout)}
    contents |= {f"tokenizer/{name}": text for name, text in tokenizer_files(tokenizer).items()}
    _write_outputs(out, contents=contents, meta=meta)
    return meta


def _jsonl(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _write_outputs(out: Path, *, contents: dict[str, str], meta: dict[str, Any]) -> None:
    # The meta file vouches for the others: it goes first and comes back last.
    (out / META).unlink(missing_ok=True)
    for name in OUTPUTS:
        write_atomic(out / name, contents[name])
    write_atomic(out / META, json.dumps(meta, indent=2) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write a file that is seen either whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def current_meta(out: Path, inputs: Inputs) -> dict[str, Any] | None:
    """The record of an earlier build, if it had the same inputs and all its files are there."""
    try:
        meta = json.loads((out / META).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(meta, dict) or not all((out / name).is_file() for name in OUTPUTS):
        return None
    return meta if asdict(inputs).items() <= meta.items() else None


def describe(meta: dict[str, Any]) -> str:
    """The numbers of a build in one line, for a person."""
    names = ("mean", "cv", "p50", "p90", "p99", "max")
    tokens = ", ".join(f"{name} {meta['tokens'][name]}" for name in names)
    return f"{meta['rows']} rows and {meta['heldout_rows']} held out; tokens a row: {tokens}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.corpus", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--limit", type=int, help="keep an even sample of this many rows")
    parser.add_argument("--max-files", type=int, help="read only this many files, evenly spaced")
    return parser.parse_args(argv)


def _make_folder(out: Path) -> None:
    """Find out that the outputs cannot be written before the work, not after it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out must be a folder, got {out}: {error.strerror}") from error
    if not os.access(out, os.W_OK):
        raise ValueError(f"--out must be a folder that can be written to, got {out}")


def _run(args: argparse.Namespace) -> str:
    """Build unless it is built already; returns the closing line."""
    roots = installed_roots()
    inputs = Inputs(
        python=platform.python_version(),
        torch=version("torch"),
        limit=args.limit,
        max_files=args.max_files,
    )
    _make_folder(args.out)
    meta = current_meta(args.out, inputs)
    if meta is not None:
        return f"{args.out} is up to date, nothing to do: {describe(meta)}"
    jobs = min(MAX_JOBS, os.cpu_count() or 1)
    return f"wrote {args.out}: {describe(build(args.out, roots=roots, inputs=inputs, jobs=jobs))}"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when the outputs are there, 2 with one line on what is wrong otherwise."""
    args = _arguments(argv)
    try:
        print(f"corpus: {_run(args)}")
    except (OSError, ValueError) as error:
        print(f"corpus: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("corpus: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

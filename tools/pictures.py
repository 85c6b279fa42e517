"""Build training data with pictures: pages of installed code, with their docstrings as answers.

Writes rows.jsonl, images/, tokenizer/ and pictures.meta.json; builds nothing again while they are
up to date. Rows have one picture, two, or none. Nothing is downloaded, and none of the code that is
read gets imported.
"""

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from tools.corpus import progress, write_atomic
from tools.data.chat_tokenizer import (
    VISION_TOKENS,
    can_be_encoded,
    tokenizer_files,
    train_tokenizer,
)
from tools.data.code_pages import CodePage, code_pages, draw
from tools.data.docstrings import installed_roots, source_files, stable_hash

TOOL_VERSION = 1
META = "pictures.meta.json"
FILES_READ = 500
ONE, TWO = "What does this code do?", "What does each of these do?"
Row = dict[str, Any]


def pages(files_read: int) -> list[CodePage]:
    """Pages of evenly spaced files, in an order of their own, none twice."""
    files = source_files(installed_roots(), max_files=files_read)
    first: dict[str, CodePage] = {}
    for file in progress(files, total=len(files), label="reading files"):
        for page in code_pages(file):
            if can_be_encoded(page.docstring) and not _names_tokens(page):
                first.setdefault(page.docstring, page)
    return sorted(first.values(), key=lambda page: stable_hash(page.docstring))


def rows_of(found: Sequence[CodePage], number: int) -> Iterator[tuple[Row, list[CodePage]]]:
    """Rows and the pages that they show: of twelve, seven one page, one two, and four a text."""
    waiting = iter(found)
    for i in range(number):
        shown = list(islice(waiting, 2 if i % 12 == 0 else 1))
        if not shown:
            return
        if i % 3 == 1:
            yield _row(f"What does {shown[0].name} do?", shown, []), []
        else:
            names = [f"images/{stable_hash(page.code):016x}.png" for page in shown]
            question = "<image>" * len(shown) + (ONE if len(shown) == 1 else TWO)
            yield _row(question, shown, names), shown


def _row(question: str, shown: list[CodePage], images: list[str]) -> Row:
    answer = "\n\n".join(page.docstring for page in shown)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **({"images": images} if images else {})}


def _names_tokens(page: CodePage) -> bool:
    return any(word in page.docstring for word in (*VISION_TOKENS, "<image>"))


def build(out: Path, *, rows: int, files_read: int = FILES_READ) -> dict[str, Any]:
    """Write everything below ``out``; returns what the meta file records.

    Raises:
        ValueError: There is not enough code for so many rows.
    """
    made = list(rows_of(pages(files_read), rows))
    if len(made) < rows:
        raise ValueError(f"--rows must be at most {len(made)} with --max-files {files_read}")
    (out / META).unlink(missing_ok=True)
    shutil.rmtree(out / "images", ignore_errors=True)
    (out / "images").mkdir(parents=True)
    sizes = []
    for row, shown in progress(made, total=len(made), label="drawing pages"):
        for page, name in zip(shown, row.get("images", []), strict=True):
            image = draw(page)
            image.save(out / name)
            sizes.append(image.width * image.height)
    texts = (turn["content"] for row, _ in made for turn in row["messages"])
    tokenizer = train_tokenizer(texts, more=VISION_TOKENS)
    for name, text in tokenizer_files(tokenizer).items():
        write_atomic(out / "tokenizer" / name, text)
    lines = "".join(json.dumps(row) + "\n" for row, _ in made)
    write_atomic(out / "rows.jsonl", lines)
    meta = {**_inputs(rows, files_read), "pictures": len(sizes), "pixels": sorted(sizes)}
    write_atomic(out / META, json.dumps(meta) + "\n")
    return meta


def _inputs(rows: int, files_read: int) -> dict[str, Any]:
    """What the outputs depend on."""
    return {
        "tool": TOOL_VERSION,
        "python": platform.python_version(),
        "torch": version("torch"),
        "pillow": version("pillow"),
        "rows": rows,
        "files_read": files_read,
    }


def current_meta(out: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The record of an earlier build of the same; None if there is none."""
    try:
        meta: dict[str, Any] = json.loads((out / META).read_text())
    except (OSError, ValueError):
        return None
    return meta if inputs.items() <= meta.items() else None


def describe(meta: dict[str, Any]) -> str:
    """The numbers of a build in one line, for a person."""
    pixels = [size / 1e6 for size in meta["pixels"]]
    spread = ", ".join(
        f"{name} {pixels[int(part * (len(pixels) - 1))]:.2f}"
        for name, part in (("least", 0), ("median", 0.5), ("most", 1))
    )
    return f"{meta['rows']} rows, {meta['pictures']} pictures; megapixels: {spread}"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when the outputs are there, 2 with one line on what is wrong otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--rows", type=int, default=300, help="rows to make (default: 300)")
    parser.add_argument("--max-files", type=int, default=FILES_READ, help="source files to read")
    args = parser.parse_args(argv)
    try:
        meta = current_meta(args.out, _inputs(args.rows, args.max_files))
        if meta is not None:
            print(f"pictures: {args.out} is up to date, nothing to do: {describe(meta)}")
            return 0
        meta = build(args.out, rows=args.rows, files_read=args.max_files)
        print(f"pictures: wrote {args.out}: {describe(meta)}")
    except (OSError, ValueError) as error:
        print(f"pictures: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pictures: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

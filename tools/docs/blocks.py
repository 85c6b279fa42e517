"""Runs the Python blocks of a page of documentation, in order, as a reader would.

    python -m tools.docs.blocks docs/tutorial.md          # fails where the page is wrong
    python -m tools.docs.blocks docs/tutorial.md --write  # writes what the blocks print, and draw

All blocks of a page share their names and run in an empty folder. A ``text`` block that follows a
``python`` block is what that prints. Two comments, which a reader does not see, change this:

    <!-- setup                      code that the next blocks need
    ...
    -->
    <!-- compile only: why -->      the next block is checked for its syntax, and not run
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PARTS = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->"
    r"|(?P<only><!-- compile only: [^\n]*-->\n+)?```python[^\n]*\n(?P<code>.*?)^```\n"
    r"(?P<out>\n```text\n(?P<text>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One piece of Python on a page.

    Attributes:
        code: What is run.
        line: Of the page on which it begins, from 1.
        run: It is run, not only compiled.
        text: What it should print, or None where the page does not say.
        text_span: Where that stands in the page.
    """

    code: str
    line: int
    run: bool
    text: str | None
    text_span: tuple[int, int]


class PageError(Exception):
    """A block of a page does not compile, raises, or prints something else."""


def blocks_of(page: str) -> Iterator[Block]:
    """All Python of a page, in order."""
    for match in PARTS.finditer(page):
        group = "code" if match["setup"] is None else "setup"
        line = page.count("\n", 0, match.start(group)) + 1
        yield Block(
            code=match[group],
            line=line,
            run=match["only"] is None,
            text=match["text"],
            text_span=match.span("text"),
        )


def run_block(block: Block, names: dict[str, object], page: Path) -> str:
    """Run one block; returns what it prints.

    Raises:
        PageError: It does not compile, or raises.
    """
    printed = io.StringIO()
    try:
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        if block.run:
            with contextlib.redirect_stdout(printed):
                exec(code, names)
    except BaseException as error:
        told = "".join(traceback.format_exception(error))
        raise PageError(f"{page}:{block.line}: the block fails\n{told}") from None
    return printed.getvalue()


def run_page(path: Path) -> str:
    """Run all blocks of a page in the current folder; returns the page as it should be.

    Raises:
        PageError: A block does not compile, or raises.
    """
    page = path.read_text()
    names: dict[str, object] = {"__name__": "__main__"}
    sys.modules["__main__"].__dict__.update(names)
    done, end = [], 0
    for block in blocks_of(page):
        printed = run_block(block, names, path)
        if block.text is not None:
            start, stop = block.text_span
            done += [page[end:start], printed]
            end = stop
    return "".join([*done, page[end:]])


def pictures_of(page: str) -> list[str]:
    """Pictures that the code of a page draws: those it names as ``img/...`` in a block."""
    code = "".join(block.code for block in blocks_of(page))
    return sorted(set(re.findall(r"img/[\w-]+\.(?:svg|png)", code)))


@contextlib.contextmanager
def _empty_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("img").mkdir()
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def check_page(path: Path, *, write: bool) -> None:
    """Run a page, and compare or write what it prints and draws.

    Raises:
        PageError: A block fails, prints something else than the page says, or draws nothing.
    """
    path = path.resolve()
    with _empty_folder() as folder:
        page = run_page(path)
        drawn = pictures_of(page)
        for name in drawn:
            if not (folder / name).exists():
                raise PageError(f"{path} names {name}, which its blocks do not draw")
            if write:
                shutil.copy(folder / name, path.parent / name)
    if write:
        path.write_text(page)
        return
    for number, (old, new) in enumerate(
        zip(path.read_text().splitlines(), page.splitlines(), strict=False), 1
    ):
        if old != new:
            raise PageError(f"{path}:{number}: the page says\n  {old}\nthe code prints\n  {new}")
    if page != path.read_text():
        raise PageError(f"{path}: the code prints more or less than the page says")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: 0 where every page is right, 1 where one is not."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.docs.blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write what the blocks print and draw")
    args = parser.parse_args(argv)
    try:
        for page in args.pages:
            check_page(page, write=args.write)
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

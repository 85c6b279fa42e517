"""Every error that the packages raise, and those that docs/errors.md does not explain yet.

    python -m tools.docs.messages            # rows to add to docs/errors.md
    python -m tools.docs.messages --all      # everything, with its place

A message stands there with ``...`` for what is filled in. Rows may use ``...`` for more: the row
"... must be at least ..." explains all messages of that shape.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("odb_nodes", "titan_integration", "hf_integration")
PAGE = ROOT / "docs" / "errors.md"
# Not told to a user: they are turned into other errors, or end the process on purpose.
INTERNAL = {
    "StopIteration",
    "AttributeError",
    "Interrupted",
    "AssertionError",
    "SystemExit",
    "IndexError",
    "EOFError",
}


class Message(NamedTuple):
    """An error as the source has it.

    Attributes:
        kind: Class of the error.
        text: What it says, ``...`` where a value is filled in.
        place: File and line.
    """

    kind: str
    text: str
    place: str


class Row(NamedTuple):
    """A row of the page: the classes in the heading above it, and the message."""

    kinds: tuple[str, ...]
    pattern: str


def messages_of(path: Path) -> Iterator[Message]:
    """The errors that a module makes, raised at once or later, with a text of its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        kind = ast.unparse(node.func).split(".")[-1]
        if kind.endswith("Error") and kind not in INTERNAL and kind[0] != "_":
            yield Message(kind, _template(node.args[0]), f"{path.relative_to(ROOT)}:{node.lineno}")


def _template(value: ast.expr) -> str:
    """A text with ``...`` for its values; "..." alone where it is all computed."""
    if isinstance(value, ast.Constant):
        text = str(value.value)
    elif isinstance(value, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "..." for part in value.values
        )
    elif isinstance(value, ast.BinOp):
        text = _template(value.left) + _template(value.right)
    else:
        text = "..."
    return re.sub(r"(\.\.\.)+", "...", " ".join(text.split()))


def all_messages() -> list[Message]:
    """Of all packages that users import, by class and text; a text raised twice is there once."""
    found: dict[tuple[str, str], Message] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for message in messages_of(path):
                found.setdefault((message.kind, message.text), message)
    return sorted(found.values())


def rows_of(page: str) -> Iterator[Row]:
    """Rows of the page's tables, ``| `message` `another` | remedy |`` under ``## `Class` ...``."""
    kinds: tuple[str, ...] = ()
    for line in page.splitlines():
        if line.startswith("#"):
            kinds = tuple(re.findall(r"`(\w+)`", line))
        elif match := re.match(r"\| (`.+?`) \|", line):
            yield from (Row(kinds, pattern) for pattern in re.findall(r"`(.+?)`", match[1]))


def explains(row: Row, message: Message) -> bool:
    """Whether a row is of this message: its class, and its words with ``...`` for anything."""
    pattern = re.sub(r"([*?\[])", r"[\1]", row.pattern).replace("...", "*")
    return message.kind in row.kinds and fnmatchcase(message.text, pattern)


def unexplained(messages: Sequence[Message], rows: Sequence[Row]) -> list[Message]:
    """Messages for which the page has no row; one without a word of its own is left out."""
    return [
        message
        for message in messages
        if re.search(r"\w", message.text) and not any(explains(row, message) for row in rows)
    ]


def unused(messages: Sequence[Message], rows: Sequence[Row]) -> list[Row]:
    """Rows of messages that nothing raises any more."""
    return [row for row in rows if not any(explains(row, message) for message in messages)]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: 1 if the page lacks a message."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.messages", description=__doc__)
    parser.add_argument("--all", action="store_true", help="list explained ones too")
    args = parser.parse_args(argv)
    messages, rows = all_messages(), list(rows_of(PAGE.read_text()))
    shown = messages if args.all else unexplained(messages, rows)
    for message in shown:
        print(f"{message.kind} | `{message.text}` | ({message.place})")
    for row in unused(messages, rows):
        print(f"nothing raises any more: {row.kinds} | `{row.pattern}`")
    return int(bool(unexplained(messages, rows) or unused(messages, rows)))


if __name__ == "__main__":
    sys.exit(main())

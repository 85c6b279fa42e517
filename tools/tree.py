"""Write the file tree of the README from the first line of every module's docstring."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- tree: python -m tools.tree -->\n```\n", "```\n<!-- /tree -->"
OTHERS = {
    ".ci/run": "what continuous integration runs: make test",
    "Makefile": "every command of this page",
    "constraints.txt": "the versions that were tested",
    "pyproject.toml": "packages, extras, ruff and mypy",
    "docs/": "training, protocol, state, loss, benchmarks, quality",
    "tests/": "one file per module; distributed/ on real gloo ranks, titan/ through torchtitan",
}
PACKAGES = ("odb_nodes", "titan_integration", "configs", "tools", "tools/bench")


def tree() -> str:
    """The lines between the markers: one a file."""
    lines = []
    for package in PACKAGES:
        lines.append(f"{package}/")
        for path in _modules(package):
            lines.append(f"  {path.name:<20} {_first_line(path)}")
    lines += [f"{name:<22} {what}" for name, what in OTHERS.items()]
    return "\n".join(lines) + "\n"


def updated(readme: str) -> str:
    """The README with its tree made anew."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tree() + END + after


def _modules(package: str) -> list[Path]:
    return sorted(p for p in (ROOT / package).glob("*.py") if p.name != "__init__.py")


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].replace("``", "").rstrip(".")


def main() -> int:
    """Rewrite README.md."""
    path = ROOT / "README.md"
    path.write_text(updated(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

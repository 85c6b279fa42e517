"""Draws the pictures that are made of numbers or of words, not of a run.

python -m tools.docs.drawings          # writes them to docs/img
python -m tools.docs.drawings --check  # 1 if one there is not what is drawn now
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.docs import architecture, padding, places, window

FOLDER = Path(__file__).parents[2] / "docs" / "img"
DRAWINGS: dict[str, Callable[[], str]] = {
    "padding.svg": padding.draw,
    "architecture.svg": architecture.draw,
    "window.svg": window.draw,
    "places.svg": places.draw,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.drawings", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    args = parser.parse_args(argv)
    stale = []
    for name, draw in DRAWINGS.items():
        path, drawn = FOLDER / name, draw()
        if args.check and (not path.exists() or path.read_text() != drawn):
            stale.append(name)
        elif not args.check:
            path.write_text(drawn)
    if stale:
        print(f"not what is drawn now: {stale}; run python -m tools.docs.drawings", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())

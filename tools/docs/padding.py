"""The picture of the README: what padding a fixed batch has, and what ours has, of equal samples.

The batches are those of the pure functions that run in training; the speeds are read from
docs/benchmarks.md, so that the picture says what the measurements say.
"""

import re
from pathlib import Path

from tools.data.workloads import WORKLOADS
from tools.docs.svg import (
    ALERT,
    FAINT,
    INK,
    PADDING,
    REAL,
    SOFT,
    picture,
    rect,
    text,
)
from tools.simulate import Setting, simulate

WORKLOAD, SAMPLES, BUDGET, WINDOW, FIXED = "sharegpt4o", 4096, 16384, 1024, 8
SHOWN = 120  # samples that either panel draws, one line each
LONGEST = 9000  # tokens at the right edge of a panel
LINE = 2.6  # height of a sample
BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
Batches = list[list[int]]


def batches() -> tuple[Batches, Batches]:
    """Lengths by batch, of fixed batches in order of the data and of ours in order of emission."""
    lengths = [int(length) for length in WORKLOADS[WORKLOAD].draw(SAMPLES)]
    fixed = [lengths[at : at + FIXED] for at in range(0, SAMPLES, FIXED)]
    result = simulate([lengths], Setting(window=WINDOW, budget=BUDGET))
    ours = [[lengths[age] for age in ages] for ages in result.ranks[0].emitted]
    return fixed, ours


def padding_of(batches: Batches) -> float:
    """Part of the padded tokens that is padding."""
    padded = sum(len(batch) * max(batch) for batch in batches)
    return 1 - sum(map(sum, batches)) / padded


def panel(x: float, y: float, width: float, batches: Batches) -> list[str]:
    """``SHOWN`` samples, a line each, padded to the longest of their batch."""
    parts, line, scale = [rect(x, y, width, SHOWN * LINE, "#fafafa")], 0, width / LONGEST
    for batch in batches[len(batches) // 4 :]:
        rows = sorted(batch, reverse=True)[: SHOWN - line]
        if not rows:
            break
        top, longest = y + line * LINE, max(batch) * scale
        over = len(batch) * max(batch) > BUDGET
        height = len(rows) * LINE - 0.8
        parts.append(rect(x, top, longest, height, PADDING))
        for at, row in enumerate(rows):
            parts.append(rect(x, top + at * LINE, row * scale, LINE - 0.4, REAL))
        if over:
            parts.append(rect(x, top, longest, height, "none", stroke=ALERT))
        line += len(rows)
    return parts


def speeds() -> dict[str, dict[str, float]]:
    """Samples/s over those of fixed batches in torchtitan: ``{column: {workload: factor}}``."""
    page = BENCHMARKS.read_text()
    table = page.partition("torchtitan's own training step")[2].partition("\n\n")[2]
    lines = [re.split(r" *\| *", line.strip("| \n")) for line in table.splitlines()[:6]]
    names = lines[0][-4:]
    return {
        cells[0]: {
            name: float(cell.split()[0]) for name, cell in zip(names, cells[1:], strict=True)
        }
        for cells in lines[2:]
    }


def bars(x: float, y: float, width: float, height: float) -> list[str]:
    """Training speed by workload: fixed batches, packing, ours."""
    found, parts = speeds(), []
    columns = (("standard-8", "#c5c9d6"), ("packing", "#8d97c4"), ("ours", REAL))
    names = list(found["ours"])
    most = max(max(found[column].values()) for column, _ in columns)
    for at, name in enumerate(names):
        top = y + at * height / len(names)
        parts.append(text(x, top + 12, name, size=14, fill=FAINT))
        for row, (column, fill) in enumerate(columns):
            length = (width - 46) * found[column][name] / most
            line = top + 18 + row * 16
            parts.append(rect(x, line, length, 13, fill, radius=2))
            bold = column == "ours"
            told = f"{found[column][name]:.2f} x"
            parts.append(
                text(
                    x + length + 6,
                    line + 11.5,
                    told,
                    size=13,
                    bold=bold,
                    fill=INK if bold else FAINT,
                )
            )
    return parts


def legend(x: float, y: float, entries: list[tuple[str, str, float]]) -> list[str]:
    """Coloured squares with their names: ``(name, fill, x offset)``."""
    parts = []
    for name, fill, offset in entries:
        parts += [rect(x + offset, y - 11, 13, 13, fill), text(x + offset + 19, y, name, size=14)]
    return parts


def draw() -> str:
    """The picture as SVG."""
    fixed, ours = batches()
    over = sum(len(batch) * max(batch) > BUDGET for batch in fixed)
    tokens = f"{BUDGET:,}"
    parts = [
        rect(16, 14, 676, 452, SOFT, radius=8),
        text(32, 42, f"Fixed batches of {FIXED}", size=18, bold=True),
        text(32, 64, f"{padding_of(fixed):.0%} of all tokens are padding,", fill=FAINT),
        text(32, 83, f"{over / len(fixed):.0%} of the batches exceed {tokens}", fill=FAINT),
        *panel(32, 98, 308, fixed),
        text(368, 42, "odb-nodes", size=18, bold=True, fill=REAL),
        text(368, 64, f"{padding_of(ours):.1%} are padding,", fill=FAINT),
        text(368, 83, f"every batch fits {tokens} tokens", fill=FAINT),
        *panel(368, 98, 308, ours),
        *legend(
            32,
            432,
            [
                ("a sample's tokens", REAL, 0),
                ("padding", PADDING, 160),
                ("over the budget", ALERT, 258),
            ],
        ),
        text(
            32,
            454,
            f"a line per sample: {SHOWN} of an epoch of {SAMPLES:,}, lengths of {WORKLOAD}",
            size=13,
            fill=FAINT,
        ),
        text(720, 42, "Training speed", size=18, bold=True),
        text(720, 64, "samples/s in torchtitan, two ranks,", fill=FAINT),
        text(720, 83, "over those of fixed batches", fill=FAINT),
        *bars(720, 100, 264, 316),
        *legend(
            720, 432, [("fixed", "#c5c9d6", 0), ("packed", "#8d97c4", 74), ("ours", REAL, 162)]
        ),
        text(720, 454, "on CPUs; see docs/benchmarks.md", size=13, fill=FAINT),
    ]
    return picture(1000, 480, "Padding and training speed of fixed batches and of odb-nodes", parts)

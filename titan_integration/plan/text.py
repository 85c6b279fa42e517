"""The plan on a terminal: what the rows hold, a table of methods, and a command line."""

from collections.abc import Mapping, Sequence
from typing import Any

from titan_integration.plan.epoch import Epoch

_BAR = 40  # characters of the longest bar
_HEADER = ("method", "budget", "window", "samples/step", "steps", "padding", "useful work", "speed")


def histogram_lines(histogram: Mapping[int, int]) -> list[str]:
    """A bar for each doubling of length."""
    buckets: dict[int, int] = {}
    for length, count in histogram.items():
        top = 1 << max(0, length - 1).bit_length()
        buckets[top] = buckets.get(top, 0) + count
    most = max(buckets.values(), default=1)
    return [
        f"  up to {top:>9,} tokens {buckets[top]:>12,}  {'#' * -(-buckets[top] * _BAR // most)}"
        for top in sorted(buckets)
    ]


def table_lines(epochs: Sequence[Epoch]) -> list[str]:
    """A line per epoch; speed is relative to the first one with the same budget."""
    rows = [_HEADER]
    for epoch in epochs:
        base = next(other for other in epochs if other.budget == epoch.budget)
        rows.append(
            (
                epoch.method,
                f"{epoch.budget:,}",
                f"{epoch.window:,}" if epoch.window else "-",
                f"{epoch.samples / epoch.steps:,.1f}",
                f"{epoch.steps:,}",
                f"{epoch.padding:.1%}",
                f"{epoch.efficiency:.1%}",
                f"{base.work / epoch.work:.2f} x",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def report_lines(report: Mapping[str, Any], sampled: int) -> list[str]:
    """What was found in the rows; ``report`` as written by ``--json``, ``sampled`` all rows."""
    lines = [
        f"{len(report['files'])} files: {', '.join(report['files'][:3])}"
        + (", ..." if len(report["files"]) > 3 else ""),
        f"{report['rows']:,} rows"
        + (f" of {sampled:,}" if report["rows"] < sampled else "")
        + f", {report['samples']:,} samples, "
        f"{report['answers_trained']:,} of {report['answers']:,} answers trained, "
        f"{report['target_tokens']:,} target tokens",
        "lengths: " + ", ".join(f"{name} {n:,}" for name, n in report["lengths"].items()),
    ]
    for reason, count in report["dropped"].items():
        lines.append(f"left out: {count:,} x {reason} (as in {report['examples'][reason]})")
    for key, count in report["unread_keys"].items():
        lines.append(f"nothing reads {key}, which {count:,} rows have")
    if report["shown"]:
        lines.append(f"a sample, trained on between [[ and ]]: {report['shown']}")
    return lines

"""What the numbers should be, and whether they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.bench.measure.results import Row, find, middle


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One target with its outcome."""

    name: str
    wanted: str
    found: str
    met: bool


# name, measure, value, limit, whether larger is better, filter of rows
_Rule = tuple[str, str, str, float, bool, Callable[[Row], bool]]
_RULES: list[_Rule] = [
    ("data path over Standard", "speed", "of_standard", 0.8, True, lambda r: r.column == "ours"),
    ("data path over reference", "speed", "of_reference", 2.5, True, lambda r: r.column == "ours"),
    (
        "first batch beyond Standard's, s",
        "speed",
        "first_beyond_standard_s",
        0.1,
        False,
        lambda r: r.column == "ours",
    ),
    ("overlap at defaults", "overlap", "overlap", 0.8, True, lambda r: _is_default(r)),
    (
        "exchange, bytes a sample and rank (window 256)",
        "ranks",
        "bytes_per_sample",
        8,
        False,
        lambda r: r.column == "ours" and r.window == 256,
    ),
    (
        "trainer's wait on two balanced ranks, of step time",
        "wait",
        "stall_of_step_time",
        0.01,
        False,
        lambda r: r.column == "ours",
    ),
    ("state, us", "state", "state_us", 200, False, lambda r: True),
    ("open a view, s", "scale", "open_s", 1, False, lambda r: r.column == "ours"),
    ("memory of a view, MB", "scale", "grown_mb", 100, False, lambda r: r.column == "ours"),
    (
        "training with torchtitan over GMT",
        "torchtitan",
        "of_gmt",
        0.97,
        True,
        lambda r: r.column == "ours",
    ),
    (
        "training over the reference",
        "training-cpu",
        "of_ref",
        1.0,
        True,
        lambda r: r.column == "ours",
    ),
]


def outcomes(rows: Sequence[Row]) -> list[Target]:
    """The worst case of every target that was measured."""
    found = []
    for name, measure, key, limit, larger, keep in _RULES:
        values = {
            f"{row.workload}{f' window {row.window}' if row.window else ''}": middle(
                row.values[key]
            )
            for row in find(rows, measure)
            if key in row.values and keep(row)
        }
        if not values:
            continue
        where, worst = (min if larger else max)(values.items(), key=lambda item: item[1])
        found.append(
            Target(
                name=name,
                wanted=f"{'>=' if larger else '<='} {limit:g}",
                found=f"{worst:.3g} ({where})",
                met=worst >= limit if larger else worst <= limit,
            )
        )
    return found


def _is_default(row: Row) -> bool:
    return row.column == "ours" and row.values["label"] == "defaults"

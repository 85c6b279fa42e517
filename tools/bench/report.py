"""The page: tables of medians and spreads, targets with their outcome, links to the plots."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.bench.measure.results import Row, Section, find, middle
from tools.bench.plots import draw
from tools.bench.targets import outcomes

PAGE = "benchmarks.md"
_NOTES = """
Every column is loaded through one protocol and counted by its tensors alone. Columns: *standard-8*
is PyTorch's `DataLoader` with batches of 8, *standard-safe* the largest batch that cannot exceed
the budget, *stateful-8* torchdata's `StatefulDataLoader`, *sorted* batches of 8 out of
length-sorted windows, *packing* greedy packing in order of arrival (as torchtitan's chat dataset
does it), *gmt* and *bmt* offline oracles that know all lengths (the fewest batches; geometric
length buckets), *reference* the package `online-dynamic-batching` without its warm-up and without
its random start-up sleep, *ours* `odb_loader` with its defaults (policy sliding, threads), then
with worker processes, with the paper's policy, and packed. Ratios compare two runs of one repeat;
numbers are medians, with the lowest and highest in brackets.
"""

_BUSY = """
**Other work shared the cores while this ran (load average up to {busy}): what depends on the clock
is noisy. Counts (batches, padding, bytes, sizes) do not depend on it.**"""


def write_report(sections: Mapping[str, Section], docs: Path) -> None:
    """Write ``benchmarks.md`` and ``img/bench-*.png``."""
    rows = [row for section in sections.values() for row in section.rows]
    images = draw(rows, docs / "img")
    lines = ["# Benchmarks", "", *_header(sections), _NOTES]
    lines += ["## Targets", "", *_targets(rows)]
    for title, told, build in _SECTIONS:
        body = build(rows)
        if body:
            lines += ["", f"## {title}", "", told, "", *body]
    for image in images:
        lines += ["", f"![{image.stem}](img/{image.name})"]
    lines += ["", "## Runs", "", *_runs(sections)]
    (docs / PAGE).write_text("\n".join(lines) + "\n", encoding="ascii")


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(cells) + " |" for cells in body]


def cell(value: Any, form: str = ".2f") -> str:
    """Text as it is, a number, or a median with its lowest and highest."""
    if isinstance(value, dict):
        middle_, low, high = (format(value[k], form) for k in ("median", "low", "high"))
        return middle_ if low == high else f"{middle_} ({low}-{high})"
    return format(value, form)


def by_workload(rows: Sequence[Row], key: str, form: str) -> list[str]:
    """One line a column (and window), one cell a workload."""
    if not rows:
        return []
    names = list(dict.fromkeys(row.workload for row in rows))
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        if key in row.values:
            label = row.column + (f" {row.window}" if row.window else "")
            lines.setdefault(label, {})[row.workload] = cell(row.values[key], form)
    body = [[label, *(found.get(name, "") for name in names)] for label, found in lines.items()]
    return table(["", *names], body)


def _header(sections: Mapping[str, Section]) -> list[str]:
    metas = [section.meta for section in sections.values()]
    machines = {
        f"{m['processor']}, {m['cores']} cores, {m['memory']}, {m['system']}"
        for m in (meta["machine"] for meta in metas)
    }
    seconds = sum(meta["seconds"] for meta in metas)
    sizes = "/".join(sorted({meta["size"] for meta in metas}))
    busy = max(meta["load"][0] for meta in metas)
    return [
        f"`make bench` ({sizes} size, {seconds} s in all), on {'; '.join(sorted(machines))}.",
        "What ran when, of which commit, and how busy the machine was, stands under Runs.",
        *([_BUSY.format(busy=busy)] if busy > metas[0]["machine"]["cores"] else []),
    ]


def _runs(sections: Mapping[str, Section]) -> list[str]:
    head = ["section", "command", "commit", "end", "seconds", "load at start, end", "versions"]
    body = []
    for name, section in sections.items():
        meta = section.meta
        versions = ", ".join(f"{key} {value}" for key, value in meta["software"].items())
        load = ", ".join(map(str, meta["load"]))
        cells = [name, f"`{meta['command']}`", meta["commit"], meta["time"]]
        body.append([*cells, str(meta["seconds"]), load, versions])
    return table(head, body)


def _targets(rows: Sequence[Row]) -> list[str]:
    body = [
        [target.name, target.wanted, target.found, "yes" if target.met else "NO"]
        for target in outcomes(rows)
    ]
    return table(["target", "wanted", "found", "met"], body)


def _shape(rows: Sequence[Row]) -> list[str]:
    found = find(rows, "shape")
    both = [_joined(row) for row in found]
    return by_workload(both, "cell", "")


def _joined(row: Row) -> Row:
    value = row.values
    mark = "*" if value["largest_over_budget"] > 1 else ""
    text = f"{value['over_minimum']:.3f}, {100 * value['padding']:.1f}{mark}"
    return replace(row, values={"cell": text})


def _speed(rows: Sequence[Row]) -> list[str]:
    found = [*find(rows, "speed"), *find(rows, "speed-tokenize")]
    return by_workload(found, "of_standard", ".2f")


def _first(rows: Sequence[Row]) -> list[str]:
    found = [*find(rows, "speed"), *find(rows, "speed-tokenize")]
    return by_workload(found, "first_beyond_standard_s", ".3f")


def _rates(rows: Sequence[Row]) -> list[str]:
    found = [*find(rows, "speed"), *find(rows, "speed-tokenize")]
    return by_workload(found, "samples_per_s", ",.0f")


def _overlap(rows: Sequence[Row]) -> list[str]:
    body = [
        [row.column, str(row.values["label"]), str(row.window), cell(row.values["overlap"])]
        for row in find(rows, "overlap")
    ]
    return table(["", "setting", "window", "overlap"], body) if body else []


def _ranks(rows: Sequence[Row]) -> list[str]:
    head = ["", "ranks", "steps / minimum", "padding %", "slowest / mean", "lost"]
    head += ["collectives", "bytes a sample"]
    body = [
        [
            f"{row.workload}: {row.column}" + (f" {row.window}" if row.window else ""),
            str(row.world),
            f"{row.values['over_minimum']:.3f}",
            f"{100 * row.values['padding']:.1f}",
            f"{row.values['slowest_over_mean']:.3f}",
            str(row.values["lost"]),
            str(row.values["collectives"]),
            f"{row.values['bytes_per_sample']:.1f}",
        ]
        for row in find(rows, "ranks")
    ]
    return table(head, body) if body else []


def _states(rows: Sequence[Row]) -> list[str]:
    head = ["", "", ""]
    body = []
    for row in find(rows, "state"):
        told = f"{cell(row.values['state_us'], '.0f')} us, {row.values['bytes']} bytes"
        body.append([row.column, f"window {row.window}, {row.values['held']} held", told])
    for row in find(rows, "resume"):
        told = "; ".join(f"{k[-3:]}: {cell(v)} s" for k, v in row.values.items() if "_s_" in k)
        body.append([row.column, "resume at a part of the epoch", told])
    for row in find(rows, "scale"):
        told = f"{row.values['open_s']:.3f} s, {row.values['grown_mb']:.1f} MB"
        body.append([row.column, f"open {int(row.workload):,} samples", told])
    for row in find(rows, "memory"):
        body.append([row.column, "peak memory of an epoch", f"{row.values['peak_mb']:.0f} MB"])
    for row in find(rows, "wait"):
        told = f"{100 * middle(row.values['wait_of_step_time']):.2f} % of step time in the "
        told += f"background, {100 * middle(row.values['stall_of_step_time']):.2f} % in the trainer"
        body.append([row.column, "wait for the exchange, two ranks", told])
    return table(head, body) if body else []


def _training(rows: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for measure, told in (
        ("torchtitan", "torchtitan's own training step, debug model"),
        ("training-cpu", "a plain decoder, with the reference"),
        ("training-cuda", "a plain decoder in bf16"),
    ):
        found = find(rows, measure)
        if found:
            lines += [f"{told}, {found[0].world} rank(s), of Standard's samples/s:", ""]
            lines += [*by_workload(found, "of_standard", ".2f"), ""]
    return lines


_SECTIONS: list[tuple[str, str, Callable[[Sequence[Row]], list[str]]]] = [
    (
        "Batches",
        "One process. Batches over the exact minimum, padding %; * exceeds the budget.",
        _shape,
    ),
    ("Data path", "Emitted samples/s over Standard's, 2 workers, window 256.", _speed),
    ("Data path, samples/s", "The same in samples/s; they depend on the machine.", _rates),
    ("First batch", "Seconds beyond Standard's first batch.", _first),
    ("Overlap with training", "Of equal preprocessing and training time, sleeps.", _overlap),
    ("Ranks", "Gloo on localhost.", _ranks),
    ("State, scale, memory", "", _states),
    ("Training", "Emitted samples/s, real steps, lengths and budget at 1/8 on CPUs.", _training),
]

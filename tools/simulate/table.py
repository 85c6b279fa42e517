"""Simulate the alignment protocol on many ranks: the real pure functions, no tensors, no network.

Prints a Markdown table, or writes its rows by name: steps against the fewest possible, modelled
time against ranks that neither pad nor wait, the slowest rank against the mean, fill and waiting.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

from tqdm import tqdm

from odb_nodes.batching.layouts import LAYOUTS
from odb_nodes.protocol.policies import POLICIES
from tools.data.workloads import WORKLOADS
from tools.simulate.rows import OPEN_ROWS, PACKERS
from tools.simulate.world import Result, Setting, deal, simulate

Row = dict[str, Any]
_SHOWN = {  # column of the printed table: how it shows the field
    "workload": "{}",
    "ranks": "{}",
    "samples": "{}",
    "window": "{}",
    "policy": "{}",
    "layout": "{}",
    "seed": "{}",
    "steps": "{}",
    "steps_over_minimum": "{:.3f}",
    "steps_over_busiest": "{:.3f}",
    "time_over_ideal": "{:.3f}",
    "slowest_over_mean": "{:.3f}",
    "padding": "{:.3f}",
    "fill": "{:.3f}",
    "idle": "{:.3f}",
    "correlation": "{:.3f}",
    "longest_wait": "{}",
    "rounds": "{}",
    "bytes_a_step": "{:.0f}",
}


def row(name: str, seed: int, setting: Setting, result: Result) -> Row:
    """One line of the table, by name."""
    ranks, steps = len(result.ranks), max(1, result.steps)
    return {
        "workload": name,
        "ranks": ranks,
        "samples": sum(len(rank.lengths) for rank in result.ranks),
        "window": setting.window,
        "policy": setting.policy,
        "layout": setting.layout,
        "seed": seed,
        "budget": setting.budget,
        "cost": setting.slope,
        "steps": result.steps,
        "steps_over_minimum": result.steps / result.fewest_steps,
        "steps_over_busiest": result.steps / result.busiest_steps,
        "time_over_ideal": result.time_over_ideal,
        "slowest_over_mean": result.slowest_over_mean,
        "padding": result.padding,
        "fill": result.fill,
        "idle": result.idle / (ranks * steps),
        "correlation": result.correlation,
        "longest_wait": result.longest_wait,
        "rounds": result.rounds,
        "bytes_a_step": result.bytes_a_rank / steps,
    }


def markdown(rows: Sequence[Row]) -> str:
    """A table, its columns aligned."""
    lines = [list(_SHOWN)]
    lines += [[form.format(row[name]) for name, form in _SHOWN.items()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    cells = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def parser() -> argparse.ArgumentParser:
    """Options; every list is combined with every other."""
    out = argparse.ArgumentParser(
        prog="python -m tools.simulate",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = out.add_argument
    add("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    add("--ranks", nargs="+", type=int, default=[1, 4, 64], help="2 to 4096 are sensible")
    add("--samples", type=int, help="samples of all ranks; default 4096, or 1000 a rank if more")
    add("--windows", nargs="+", type=int, default=[256, 1024], help="samples buffered a rank")
    add(
        "--policies",
        nargs="+",
        choices=[*POLICIES, *PACKERS],
        default=["tumbling", "sliding"],
        help=f"of the others, which fill packed rows only and use no window, first-fit has "
        f"{OPEN_ROWS} open rows and best-fit-decreasing knows the whole epoch",
    )
    add("--layouts", nargs="+", choices=list(LAYOUTS), default=["padded"])
    add("--cost", type=float, default=0.0, help="b in the cost of a sample, L + b * L * L tokens")
    add("--budget", type=int, default=16384, help="tokens a group")
    add("--capacity", type=int, help="most steps a round; default by policy")
    add("--seed", nargs="+", type=int, default=[0], help="of the lengths")
    add("--out", default="-", help="file for the table, - for standard output")
    add("--json", help="file for the rows of the table by name")
    return out


def cases(args: argparse.Namespace) -> list[tuple[str, int, int, Setting]]:
    """Workload, ranks, seed and setting of every row, without packers of padded groups."""
    return [
        (
            name,
            ranks,
            seed,
            Setting(
                policy=policy,
                layout=layout,
                slope=args.cost,
                window=window,
                budget=args.budget,
                capacity=args.capacity,
            ),
        )
        for name, ranks, window, layout, policy, seed in product(
            args.workloads, args.ranks, args.windows, args.layouts, args.policies, args.seed
        )
        if layout == "packed" or policy not in PACKERS
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(argv)
    if min([*args.ranks, *args.windows, args.budget, args.samples or 1, args.capacity or 1]) < 1:
        parser().error("ranks, windows, budget, capacity and samples must be at least 1")
    if not args.cost >= 0:
        parser().error(f"cost must be at least 0, got {args.cost}")
    wanted = cases(args)
    if not wanted:
        parser().error(f"{', '.join(args.policies)} fill packed rows only: add --layouts packed")
    rows = []
    for name, ranks, seed, setting in tqdm(wanted, disable=not sys.stderr.isatty()):
        samples = args.samples or max(4096, 1000 * ranks)
        shares = deal(WORKLOADS[name].draw(samples, seed), ranks)
        rows.append(row(name, seed, setting, simulate(shares, setting)))
    if args.json is not None:
        with open(args.json, "w", encoding="ascii") as file:
            json.dump(rows, file, indent=1)
    if args.out != "-":
        with open(args.out, "w", encoding="ascii") as file:
            file.write(markdown(rows))
    else:
        sys.stdout.write(markdown(rows))
    return 0

"""Command line of ``odb-plan``: what is in the rows, and how to batch them, before training."""

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from odb_nodes.batching.cost import Cost
from titan_integration.data.checks.check import examine
from titan_integration.data.checks.report import Report
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.inputs.mixture import Mixture
from titan_integration.errors import UserError
from titan_integration.plan import picture, text
from titan_integration.plan.epoch import Epoch, cost_of_model
from titan_integration.plan.memory import (
    ModelShape,
    budget_in,
    shape_of_config,
    shape_of_folder,
)
from titan_integration.plan.plan import DIM, Question, num_epochs, pick_window, recommend, simulate

BAD_INPUT = 2
GPUS_PER_NODE = 8
UNLIMITED = 1 << 31  # tokens of a sample, where --seq_len is not given
_READING = ("format", "columns", "roles", "preference", "train_on", "chat_template", "too_long")


def parser() -> argparse.ArgumentParser:
    """The options."""
    out = argparse.ArgumentParser(prog="odb-plan", description=__doc__)
    add = out.add_argument
    add("path", nargs="*", help="files, folders, patterns or dataset names, as --data.path takes")
    add("--mix", nargs="+", default=[], metavar="PATH:WEIGHT", help="instead: with weights")
    add("--hf_assets_path", required=True, help="folder of the tokenizer, and of config.json")
    add("--split", help="of datasets that have several")
    add("--rows", type=int, help="look at so many rows only, evenly spread; default: all")
    add("--seq_len", type=int, help="longest sample that the model takes; default: no limit")
    for name in _READING:
        add(f"--{name}", nargs="+" if name in ("columns", "roles") else None,
            help=f"as --data.{name} in training")  # fmt: skip
    add("--module", help="with --config: the configuration that is to be trained")
    add("--config", help="with --module: its model's size bounds the budget")
    add("--memory_gb", type=float, help="memory of a GPU in GB; bounds the budget")
    add("--gpus", type=int, default=8, help="data-parallel GPUs (default: 8)")
    add("--budgets", nargs="+", type=int, help="token budgets to try; default: around the best")
    add("--windows", nargs="+", type=int, default=[256, 1024, 4096], help="windows to try")
    add("--json", type=Path, metavar="FILE", help="write everything found, as JSON")
    add("--png", type=Path, default=Path("odb-plan.png"), metavar="FILE",
        help="write the picture (default: odb-plan.png)")  # fmt: skip
    add("--cache_dir", help="as --data.cache_dir in training")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan. Returns the exit code: 0, or 2 with one line on stderr for bad input."""
    args = parser().parse_args(argv)
    try:
        _run(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _run(args: argparse.Namespace) -> None:
    _check_numbers(args)
    shape = _shape(args)
    data = _data_config(args)
    data.validate()
    table = data.inputs().open()
    report = _look(table, _encoder(args, data), args.rows)
    print("\n".join(text.report_lines(report.to_dict(), sampled=len(table))))
    if not report.histogram:
        raise UserError("no row can be trained on: there is nothing to plan")
    print("\n".join(text.histogram_lines(report.histogram)))
    lengths = _all_lengths(report, len(table))
    fits = None
    if args.memory_gb is not None and shape is not None:
        fits = budget_in(args.memory_gb, shape, args.gpus)
    budget, why = recommend(fits, lengths, args.gpus)
    epochs = _simulated(args, lengths, budget, cost_of_model(DIM if shape is None else shape.dim))
    window = pick_window(epochs, budget)
    command = _command(args, report, budget, window)
    print("\n".join(["", *text.table_lines(epochs), ""]))
    print(f"budget: {budget:,} tokens per GPU and step: {why}")
    print(f"window: {window:,} samples per GPU\n\n{command}")
    picture.save(args.png, lengths, epochs, budget)
    print(f"\npicture: {args.png}")
    if args.json is not None:
        found = {"token_budget": budget, "window": window, "why": why, "command": command}
        _write(args.json, report, {"plan": [asdict(e) for e in epochs], "recommended": found})


def _check_numbers(args: argparse.Namespace) -> None:
    if not args.path and not args.mix:
        raise UserError("give a path, or --mix")
    numbers = {name: [getattr(args, name)] for name in ("rows", "seq_len", "memory_gb", "gpus")}
    numbers |= {"budgets": args.budgets or [], "windows": args.windows}
    for name, values in numbers.items():
        for value in values:
            if value is not None and value <= 0:
                raise UserError(f"--{name} must be over 0, got {value}")
    if (args.module is None) != (args.config is None):
        raise UserError("--module and --config name a configuration together: give both")


def _shape(args: argparse.Namespace) -> ModelShape | None:
    """The model's shape from the configuration, else from the tokenizer's folder."""
    if args.module is not None:
        return shape_of_config(args.module, args.config)
    shape = shape_of_folder(Path(args.hf_assets_path))
    if shape is None and args.memory_gb is not None:
        raise UserError(
            f"--memory_gb needs a model: give --module and --config, or put the model's "
            f"config.json into {args.hf_assets_path}"
        )
    return shape


def _data_config(args: argparse.Namespace) -> DataConfig:
    given = {name: getattr(args, name) for name in _READING if getattr(args, name) is not None}
    if args.seq_len is not None:
        given.setdefault("too_long", "drop")
    return DataConfig(
        path=args.path,
        mix=args.mix,
        split=args.split,
        cache_dir=args.cache_dir,
        odb=OdbConfig(on_error="skip"),
        **given,
    )


def _encoder(args: argparse.Namespace, data: DataConfig) -> Encoder:
    try:
        tokenizer = ChatTokenizer(tokenizer_path=args.hf_assets_path)
    except Exception as error:  # of any library below it
        said = " ".join(str(error).split())[:200]
        raise UserError(f"no tokenizer in --hf_assets_path {args.hf_assets_path}: {said}") from None
    return Encoder(tokenizer, data.encoding(max_len=args.seq_len or UNLIMITED))


def _look(table: Mixture, encoder: Encoder, rows: int | None) -> Report:
    total = len(table)
    count = total if rows is None else min(rows, total)
    indices = range(total) if count == total else [i * total // count for i in range(count)]
    return examine(table, encoder, indices, show=sys.stderr.isatty())


def _all_lengths(report: Report, rows: int) -> Counter[int]:
    """Lengths of all rows, where only some were looked at: as often as there are more rows."""
    factor = rows / max(1, report.rows)
    return Counter({length: max(1, round(n * factor)) for length, n in report.histogram.items()})


def _simulated(
    args: argparse.Namespace, lengths: Counter[int], budget: int, cost: Cost
) -> list[Epoch]:
    budgets = sorted({*(args.budgets or [max(256, budget // 2), budget * 2]), budget})
    share = sum(lengths.values()) / args.gpus
    asked = sorted(set(args.windows))
    # Of windows that hold all samples, the smallest shows what the others do.
    windows = (*(w for w in asked if w < share), *[w for w in asked if w >= share][:1])
    question = Question(gpus=args.gpus, budgets=tuple(budgets), windows=windows, cost=cost)
    bar = tqdm(simulate(lengths, question), total=num_epochs(question), desc="simulating",
               delay=2, disable=None)  # fmt: skip
    return list(bar)


def _command(args: argparse.Namespace, report: Report, budget: int, window: int) -> str:
    """The command that trains so, ready to paste where a configuration was named."""
    nodes = -(-args.gpus // GPUS_PER_NODE)
    launch = f"--nproc_per_node={min(args.gpus, GPUS_PER_NODE)}"
    launch = f"--nnodes={nodes} {launch}" if nodes > 1 else f"--standalone {launch}"
    longest = args.seq_len or -(-report.lengths["longest"] // 256) * 256
    parts = [
        f"python -m titan_integration.launch {launch} -m titan_integration.train",
        f"--module {args.module or 'MODULE'} --config {args.config or 'CONFIG'}",
        f"--hf_assets_path {shlex.quote(args.hf_assets_path)}",
        *(_flag("path", args.path) + _flag("mix", args.mix)),
        *(_flag("split", [args.split] if args.split else [])),
        *(part for name in _READING for part in _flag(name, _listed(getattr(args, name)))),
        f"--data.odb.token_budget {budget} --data.odb.window {window}",
        f"--training.seq_len {longest}",
    ]
    return " \\\n    ".join(parts)


def _flag(name: str, values: Sequence[str]) -> list[str]:
    return [f"--data.{name} {shlex.quote(','.join(values))}"] if values else []


def _listed(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _write(path: Path, report: Report, more: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps({**report.to_dict(), **more}, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write --json {path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())

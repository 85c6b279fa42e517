"""What is in a checkpoint, and whether it is whole: epoch, delivered, held, dropped, remaining.

Reads a file with the bytes of ``pack_states``, or a checkpoint folder of torchtitan or of
``torch.distributed.checkpoint`` that holds such bytes under ``<some key>.odb``. Of a folder only
the index is unpickled, which PyTorch itself cannot do without; our bytes hold nothing executable.
"""

import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from odb_nodes import StateError, describe_state, unpack_states, verify_states
from titan_integration.run.checkpoints import INDEX, examine, newest_whole, read_places, steps_in

_KEY = "odb"  # the last part of the key in a checkpoint
_SUMMED = ("emitted", "held", "pending", "remaining", "num_tokens", "padded_tokens", "idle_steps")


class InputError(ValueError):
    """What was given holds no states."""


def read_blob(path: Path) -> bytes:
    """The packed states in a file or a checkpoint folder.

    Raises:
        InputError: There are none; says where the checkpoints are, where it can.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_file():
        if path.suffix in (".distcp", ".safetensors") or path.name == INDEX:
            raise InputError(f"{path} is a part of a checkpoint; give its folder, {path.parent}")
        return path.read_bytes()
    found = examine(_step(path), path)
    if found.problem is not None and (found.lost or not (path / INDEX).exists()):
        raise InputError(f"{path} is no whole checkpoint: {found.problem}{_hint(path)}")
    return _read_entry(path)


def _step(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else 0


def _hint(path: Path) -> str:
    """Where there are checkpoints: in a run's folder, or beside an export."""
    for folder in (path, path / "checkpoint", path.parent):
        if steps_in(folder):
            newest = newest_whole(folder).checkpoint
            names = ", ".join(found.name for _, found in reversed(steps_in(folder)))
            whole = f"; the newest whole one is {newest.path}" if newest is not None else ""
            return f"; {folder} has {names}{whole}"
    return ""


def _read_entry(folder: Path) -> bytes:
    places = read_places(folder)
    keys = sorted(key for key in places if key.split(".")[-1] == _KEY)
    if len(keys) != 1:
        raise InputError(
            f"{folder} must have one entry <key>.{_KEY}, got {keys or 'none'}: was dynamic "
            "batching on in the run that saved it?"
        )
    [place] = places[keys[0]]
    with (folder / place.relative_path).open("rb") as file:
        file.seek(place.offset)
        blob = torch.load(io.BytesIO(file.read(place.length)), weights_only=True)
    if not isinstance(blob, bytes) or not blob:
        raise InputError(f"{folder}: {keys[0]} is empty, nothing was delivered before it was saved")
    return blob


def summarise(states: Sequence[Any]) -> dict[str, Any]:
    """``{"total": {...}, "ranks": [{...}, ...]}``, with "padding" as a part of all tokens."""
    ranks = [describe_state(state) for state in states]
    total: dict[str, Any] = {name: ranks[0][name] for name in ("epoch", "num_samples", "settings")}
    total.update(world_size=len(ranks), steps=ranks[0]["steps"], dropped={})
    for name in _SUMMED:
        values = [rank[name] for rank in ranks]
        total[name] = None if None in values else sum(values)
    for rank in ranks:
        for reason, count in rank["dropped"].items():
            total["dropped"][reason] = total["dropped"].get(reason, 0) + count
    for told in (total, *ranks):
        padded = told["padded_tokens"]
        told["padding"] = 1 - told["num_tokens"] / padded if padded else 0.0
    return {"total": total, "ranks": ranks}


def as_text(summary: dict[str, Any]) -> str:
    """The summary as a table with one line a rank, and the settings."""
    total = summary["total"]
    lines = [
        f"epoch {total['epoch']}, step {total['steps']}, {total['world_size']} ranks, "
        f"dataset of {total['num_samples']} samples",
        f"{'rank':>5} {'delivered':>10} {'held':>8} {'pending':>8} {'dropped':>8} "
        f"{'remaining':>10} {'padding':>8} {'idle':>6}",
    ]
    for told in [*summary["ranks"], total]:
        left = "unknown" if told["remaining"] is None else told["remaining"]
        lines.append(
            f"{told.get('rank', 'all'):>5} {told['emitted']:>10} {told['held']:>8} "
            f"{told['pending']:>8} {sum(told['dropped'].values()):>8} {left:>10} "
            f"{told['padding']:>8.2%} {told['idle_steps']:>6}"
        )
    lines += [f"dropped: {reason} {count}" for reason, count in total["dropped"].items()]
    lines.append("settings: " + ", ".join(f"{k}={v}" for k, v in total["settings"].items()))
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Print what was asked for; returns the exit code.

    Raises:
        InputError: Nothing to read there.
        StateError: The states are damaged.
    """
    states = unpack_states(read_blob(args.path))
    if not states:
        raise InputError(f"{args.path} holds no state")
    summary = summarise(states)
    summary["whole"] = args.path.is_dir()  # else reading it would have failed
    if args.verify is not None:
        summary["verify"] = verify_states(states, args.verify)
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        if summary["whole"]:
            print(f"{args.path} is whole")
        print(as_text(summary))
        if args.verify is not None:
            print(f"verify: {summary['verify']}")
    return int(args.verify is not None and summary["verify"] != "exact")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: 0 is fine, 1 a failed verification, 2 bad input (one line on stderr)."""
    parser = argparse.ArgumentParser(prog="odb-inspect", description=__doc__)
    parser.add_argument("path", type=Path, metavar="CHECKPOINT_OR_STATE")
    parser.add_argument(
        "--verify",
        type=int,
        metavar="DATASET_LEN",
        help="check that delivered and remaining samples are the epoch, each once",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    try:
        return run(args)
    except (InputError, StateError, OSError) as error:
        print(f"inspect: {error}", file=sys.stderr)
    except Exception as error:  # whatever PyTorch raises over a damaged checkpoint
        print(f"inspect: cannot read {args.path}: {error!r:.200}", file=sys.stderr)
    return 2

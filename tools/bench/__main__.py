"""Command line: run the sections, write JSON, a Markdown page and its plots."""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.bench import results
from tools.bench.sections import SECTIONS, TITAN
from tools.bench.settings import Settings

CORPUS = Path("outputs/corpus")
REF_PYTHON = Path(".venv-ref/bin/python")
SIZES = {"full": Settings, "quick": Settings.quick, "tiny": Settings.tiny}


def main(argv: list[str] | None = None) -> int:
    """Run; returns 1 if a section failed."""
    args = _parser().parse_args(argv)
    settings = SIZES["quick" if args.quick else args.size]()
    settings = settings.with_texts(args.jsonl, CORPUS / "tokenizer" / "tokenizer.json")
    names = args.sections.split(",") if args.sections else [*SECTIONS, TITAN]
    if args.device == "cuda":
        settings = replace(settings, device="cuda", model="large", train_count=512)
        names = ["training"]
    pythons = {name: _python(name) for name in names}
    started, machine = time.monotonic(), results.describe_machine()
    rows, software, failed = [], {}, []
    for at, name in enumerate(names, 1):
        print(f"bench {at}/{len(names)}: {name} ({time.monotonic() - started:.0f} s)", flush=True)
        found = _run(name, pythons[name], settings)
        if found is None:
            failed.append(name)
            continue
        rows += found[0]
        software[name] = found[1]["software"]
    meta: dict[str, Any] = {
        "machine": machine,
        "software": software,
        "commit": results.commit(),
        "command": shlex.join(["python", "-m", "tools.bench", *(argv or sys.argv[1:])]),
        "seconds": round(time.monotonic() - started),
        "failed": failed,
    }
    results.write(args.out / "bench.json", rows, meta)
    if not args.no_report:
        from tools.bench.report import write_report

        write_report(rows, meta, args.docs)
    print(f"bench: {len(rows)} rows in {meta['seconds']} s; see {args.out / 'bench.json'}")
    for name in failed:
        print(f"bench: section {name} failed, its output is above", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="everything, smaller")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny is for tests")
    parser.add_argument("--sections", help="some of: " + ",".join([*SECTIONS, TITAN]))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the training")
    parser.add_argument(
        "--jsonl", type=Path, default=CORPUS / "corpus.jsonl", help="texts to tokenize"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"), help="for the JSON")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="for page and plots")
    parser.add_argument("--no-report", action="store_true", help="write the JSON only")
    return parser


def _python(name: str) -> str:
    """The environment with the reference in it, if there is one and the section has no need of
    another; all columns of a section share it."""
    if name != TITAN and REF_PYTHON.exists():
        return str(REF_PYTHON)
    return sys.executable


def _run(name: str, python: str, settings: Settings) -> tuple[list[results.Row], Any] | None:
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [python, "-W", "ignore", "-m", "tools.bench.sections"]
        command += [name, settings.dumps(), str(out)]
        done = subprocess.run(command, env=environment, check=False)
        return results.read(out) if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())

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
    out, found = args.out / "bench.json", {}
    if args.sections and out.exists():
        found = results.read(out)  # the others keep what they had
    command = _command(args)
    started, failed = time.monotonic(), []
    for at, name in enumerate(names, 1):
        print(f"bench {at}/{len(names)}: {name} ({time.monotonic() - started:.0f} s)", flush=True)
        section = _run(name, _python(name), settings)
        if section is None:
            failed.append(name)
            continue
        section.meta["command"] = command
        found[name] = section
        results.write(out, found)  # every time: a run that is stopped keeps what it has
    if not args.no_report:
        from tools.bench.report import write_report

        write_report(found, args.docs)
    print(f"bench: {time.monotonic() - started:.0f} s; see {out}")
    for name in failed:
        print(f"bench: section {name} failed, its output is above", file=sys.stderr)
    return 1 if failed else 0


def _command(args: argparse.Namespace) -> str:
    """What to type for the same numbers; where they are written does not matter."""
    size = [] if args.size == "full" else ["--size", args.size]
    words = ["python", "-m", "tools.bench", *(["--quick"] if args.quick else size)]
    words += ["--sections", args.sections] if args.sections else []
    words += ["--device", args.device] if args.device != "cpu" else []
    return shlex.join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="everything, smaller")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny is for tests")
    parser.add_argument(
        "--sections",
        help="only these, the others keep their last results: " + ",".join([*SECTIONS, TITAN]),
    )
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


def _run(name: str, python: str, settings: Settings) -> results.Section | None:
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [python, "-W", "ignore", "-m", "tools.bench.sections"]
        command += [name, settings.dumps(), str(out)]
        done = subprocess.run(command, env=environment, check=False)
        return results.read(out)[name] if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())

"""Command line: run the sections, write JSON, a Markdown page and its plots."""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from tools.bench.measure import results
from tools.bench.measure.settings import SECTIONS, TITAN, Settings

CORPUS = Path("outputs/corpus")
REF_PYTHON = Path(".venv-ref/bin/python")
SIZES = {"full": Settings, "quick": Settings.quick, "tiny": Settings.tiny}


def main(argv: list[str] | None = None) -> int:
    """Run; returns 1 if a section failed."""
    args = _parser().parse_args(argv)
    settings = SIZES["quick" if args.quick else args.size]()
    settings = settings.with_texts(args.jsonl, CORPUS / "tokenizer" / "tokenizer.json")
    names = args.sections.split(",") if args.sections else list(SECTIONS)
    if args.device == "cuda":
        settings = replace(settings, device="cuda", model="large", train_count=512)
        names = ["training"]
    out, found = args.out / "bench.json", {}
    if args.sections and out.exists():
        found = results.read(out)  # the others keep what they had
    command = _command(args)
    started, missing = time.monotonic(), set(names)
    for python, group in groupby(names, _python):
        for name, section in _run(list(group), python, settings):
            section.meta["command"] = command
            found[name] = section
            results.write(out, found)  # every time: a run that is stopped keeps what it has
            missing.remove(name)
            seconds = time.monotonic() - started
            print(f"bench: {name} done, {len(missing)} to go ({seconds:.0f} s)", flush=True)
    if not args.no_report:
        from tools.bench.report import write_report

        write_report(found, args.docs)
    print(f"bench: {time.monotonic() - started:.0f} s; see {out}")
    for name in sorted(missing):
        print(f"bench: section {name} failed, its output is above", file=sys.stderr)
    return 1 if missing else 0


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
        help="only these, the others keep their last results: " + ",".join(SECTIONS),
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
    """The environment of a section; all its columns share it.

    It is the one with the reference in it, if there is one and the section needs no other.
    """
    if name != TITAN and REF_PYTHON.exists():
        return str(REF_PYTHON)
    return sys.executable


def _run(
    names: list[str], python: str, settings: Settings
) -> Iterator[tuple[str, results.Section]]:
    """Run sections in another process; yields each that succeeds once it is there."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-W", "ignore", "-m", "tools.bench.sections"]
        command += [",".join(names), settings.dumps(), folder]
        process = subprocess.Popen(command, env=environment)
        try:
            running = True
            while running:
                running = process.poll() is None
                for file in sorted(Path(folder).glob("*.json")):
                    yield file.stem, results.read(file)[file.stem]
                    file.unlink()
                time.sleep(0.2 if running else 0)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())

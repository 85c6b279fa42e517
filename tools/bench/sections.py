"""The sections of the benchmark, each in a process of its own: ``NAME,NAME,... SETTINGS FOLDER``.

The processes are forks of one that has imported everything, which takes seconds.
"""

import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools.bench.measure import counts, loop, ranks, resources, results, states, timing
from tools.bench.measure.results import Row
from tools.bench.measure.settings import TITAN, Settings

_MEASURES: dict[str, Callable[[Settings], list[Row]]] = {
    "shape": counts.shape,
    "speed": timing.speed,
    "overlap": resources.overlap,
    "memory": resources.memory,
    "ranks": ranks.ranks,
    "states": states.states,
    "scale": states.scale,
    "ablations": counts.ablations,
    "training": loop.training,
}


def run_all(names: list[str], settings: Settings, folder: Path) -> None:
    """Run sections in turn; each that succeeds leaves ``NAME.json`` in ``folder``."""
    for name in names:
        args = (name, settings, folder / f"{name}.json")
        process = multiprocessing.get_context("fork").Process(target=_run, args=args)
        process.start()
        process.join()


def _run(name: str, settings: Settings, out: Path) -> None:
    """Run one section in this process and write its rows."""
    started, load = time.monotonic(), results.load_average()
    rows = _titan(settings) if name == TITAN else _MEASURES[name](settings)
    meta = {
        "size": settings.size,
        "software": results.describe_software(),
        "machine": results.describe_machine(),
        "commit": results.commit(),
        "time": results.now(),
        "seconds": round(time.monotonic() - started),
        "load": [load, results.load_average()],  # ours included, at the end
    }
    partial = out.with_suffix(".partial")
    results.write(partial, {name: results.Section(rows=rows, meta=meta)})
    partial.replace(out)  # whoever waits for it sees it whole


def _titan(settings: Settings) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        command += ["-m", "tools.bench.measure.titan", settings.dumps(), folder]
        with (Path(folder) / "log").open("wb") as log:  # torchtitan's, of interest if it fails
            failed = subprocess.run(command, stderr=log, check=False).returncode
        if failed:
            raise SystemExit((Path(folder) / "log").read_text(errors="replace")[-4000:])
        told = [results.load(Path(folder) / f"{rank}.json") for rank in range(2)]
    return loop.to_rows("torchtitan", told)


if __name__ == "__main__":
    run_all(sys.argv[1].split(","), Settings.loads(sys.argv[2]), Path(sys.argv[3]))

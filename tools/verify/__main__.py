"""Check the protocol's guarantees in every small world, with the real pure functions.

Every world of 2 and of 3 ranks with a few samples each is run to its end, for every length, window,
capacity, policy and mode, and every state it passes through is checked. A state is a world together
with how far it has come, counted once. Exit status 1 and the smallest counterexample if a guarantee
is broken.
"""

import argparse
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from tools.verify.rank import Setting
from tools.verify.world import Outcome, Scope, explore

QUICK = Scope(most_samples={2: 3, 3: 2}, most_with_quota={2: 2, 3: 1})
FULL = Scope(most_samples={2: 5, 3: 3}, most_with_quota={2: 3, 3: 2})
_LINE_EVERY_S = 10.0


class Progress:
    """A bar on a terminal, a line now and then elsewhere; on standard error."""

    def __init__(self, worlds: int) -> None:
        self._bar = tqdm(total=worlds, unit=" worlds", disable=not sys.stderr.isatty())
        self._total, self._worlds, self._states = worlds, 0, 0
        self._told = time.monotonic()

    def __call__(self, worlds: int, states: int) -> None:
        self._worlds += worlds
        self._states += states
        self._bar.update(worlds)
        self._bar.set_postfix(states=self._states, refresh=False)
        if self._bar.disable and time.monotonic() - self._told > _LINE_EVERY_S:
            self._told = time.monotonic()
            done = f"{self._worlds} of {self._total} worlds, {self._states} states"
            print(f"verify: {done}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        self._bar.close()


def _worker(scope: Scope, settings: Sequence[Setting], messages: Any) -> None:
    messages.put(explore(scope, settings, lambda *counts: messages.put(counts)))


def explore_in_processes(
    scope: Scope, settings: Sequence[Setting], jobs: int, progress: Callable[[int, int], None]
) -> list[Outcome]:
    """``explore`` with the settings dealt out to processes."""
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    workers = [
        context.Process(target=_worker, args=(scope, settings[job::jobs], messages), daemon=True)
        for job in range(jobs)
    ]
    for worker in workers:
        worker.start()
    outcomes: list[Outcome] = []
    try:
        while len(outcomes) < jobs:
            try:
                message = messages.get(timeout=1.0)
            except queue.Empty:
                failed = [worker.exitcode for worker in workers if worker.exitcode]
                if failed:
                    raise RuntimeError(f"a worker ended with exit code {failed[0]}") from None
                continue
            if isinstance(message, Outcome):
                outcomes.append(message)
            else:
                progress(*message)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    return outcomes


def count_worlds(scope: Scope) -> int:
    """Worlds in a scope."""
    return len(scope.settings()) * sum(len(list(scope.modes(s))) for s in scope.shares())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.verify", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all worlds of the full scope")
    parser.add_argument("--jobs", type=int, help="processes; default 2 with --full, else 1")
    args = parser.parse_args(argv)
    jobs = args.jobs or (2 if args.full else 1)
    if jobs < 1:
        parser.error(f"jobs must be at least 1, got {jobs}")
    scope = FULL if args.full else QUICK
    started, progress = time.monotonic(), Progress(count_worlds(scope))
    if jobs == 1:
        outcomes = [explore(scope, scope.settings(), progress)]
    else:
        outcomes = explore_in_processes(scope, scope.settings(), jobs, progress)
    progress.close()
    broken = [outcome for outcome in outcomes if outcome.violation is not None]
    if broken:
        print(min(broken, key=lambda outcome: outcome.size).violation)
    states, worlds = sum(o.states for o in outcomes), sum(o.worlds for o in outcomes)
    print(f"worlds={worlds} seconds={time.monotonic() - started:.0f}")
    print(f"states={states} violations={len(broken)}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())

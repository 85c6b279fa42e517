"""Processes of a run: found by their parents, or by the list of what was forked for it."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from titan_integration.run.processes import parents


def forked(listed: Path) -> list[tuple[int, str]]:
    """Process and rank ("-" for none) of all that a preloaded server forked for a run."""
    if not listed.exists():
        return []
    return [(int(pid), rank) for pid, rank in map(str.split, listed.read_text().splitlines())]


def family(pids: Iterable[int]) -> list[int]:
    """Those of the processes that are alive, and all below them."""
    above = parents()
    found = list(dict.fromkeys(pids))
    for pid in found:
        found += [child for child, parent in above.items() if parent == pid and child not in found]
    return [pid for pid in found if pid in above]


def kill(pids: Iterable[int]) -> None:
    """SIGKILL each of them that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

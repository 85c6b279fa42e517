"""torchrun that lets a one-line message stand: ``python -m titan_integration.launch [torchrun's]``.

torchrun answers every failed worker with a report and a stack trace of its own, and exit code 1.
Here the workers' own line and exit code stand, a rank that was killed is named with its signal, and
a signal reaches the ranks, which save and end by themselves, and not their helper processes.
Otherwise this is torchrun, with all of its arguments.
"""

import logging
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from titan_integration.run.processes import parents

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

BAD_INPUT = 2
PEER_LOST = 3  # a rank that lost another one, and knows nothing about it
RESUMES = "the same command goes on from the newest whole checkpoint"
# Passed on to the ranks; torchrun itself would only wait for half a minute, and then kill them.
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    """Launch as ``sys.argv`` says; all of torchrun's arguments apply."""
    for signum in PASSED_ON:  # first: importing torch takes seconds
        signal.signal(signum, _pass_on)
    from torch import distributed as dist
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args, run

    os.environ["ODB_LAUNCHER"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with a warning
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGQUIT")
    for name in ("torch.distributed.elastic", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    args = parse_args(sys.argv[1:])
    args.signals_to_handle = "SIGQUIT"
    try:
        run(args)
    except SignalException as stop:
        sys.exit(128 + int(stop.sigval))
    except ChildFailedError as error:
        _end(list(error.failures.values()))
    except (RendezvousError, dist.DistError, OSError) as error:
        lines = (str(error) or repr(error)).strip().splitlines()
        print(f"error: the ranks cannot be started: {lines[0]}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def _pass_on(signum: int, frame: FrameType | None) -> None:
    children = _children()
    if not children:
        name = signal.Signals(signum).name
        os.write(2, f"stopped by {name} before the ranks began\n".encode())
        os._exit(128 + signum)
    for pid in children:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def _children() -> list[int]:
    """Processes that this one started and that still run."""
    return [pid for pid, parent in parents().items() if parent == os.getpid()]


def _end(failures: list["ProcessFailure"]) -> NoReturn:
    """Exit as the rank did that failed first; the others were ended because of it."""
    killed = [f for f in failures if f.exitcode < 0 and -f.exitcode != signal.SIGTERM]
    if killed:
        name = signal.Signals(-killed[0].exitcode).name
        hint = "; out of memory? see dmesg" if name == "SIGKILL" else ""
        print(
            f"error: rank {_rank_of(killed[0])} (process {killed[0].pid}) was killed by "
            f"{name}{hint}; {RESUMES}",
            file=sys.stderr,
        )
        sys.exit(BAD_INPUT)
    codes = [f.exitcode for f in failures if f.exitcode > 0]
    codes = [code for code in codes if code != PEER_LOST] or codes
    first = min(failures, key=lambda failure: (failure.exitcode != 1, failure.timestamp))
    code = 1 if 1 in codes else min(codes, default=128 + signal.SIGTERM)
    if not codes:
        print("stopped by SIGTERM before training began", file=sys.stderr)
    if code == PEER_LOST:
        print(f"error: lost a rank; {RESUMES}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    if code == 1:
        print(
            f"error: rank {_rank_of(first)} failed with exit code 1; its trace is above and in "
            f"logs/rank{_rank_of(first)}.log of the dump folder",
            file=sys.stderr,
        )
    sys.exit(code)


def _rank_of(failure: "ProcessFailure") -> int:
    """Global rank; on several nodes that take the same number of ranks."""
    node = int(os.environ.get("GROUP_RANK", "0"))
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return node * per_node + failure.local_rank


if __name__ == "__main__":
    main()

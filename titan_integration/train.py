"""Entry point: ``python -m titan_integration.train --module configs.llama3 --config debug_odb``.

Runs torchtitan's own ``main`` on GPUs or CPUs, alone or under torchrun. Exit codes: 0 done, 2 bad
input (one line on stderr), 128 + signal when interrupted, 1 anything else.
"""

import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

from titan_integration import cpu
from titan_integration.errors import UserError

BAD_INPUT = 2
STOP_GRACE_S = 15.0


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; no ``except Exception`` on the way may swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def main() -> None:
    """Train as ``sys.argv`` says; does not return when the run fails."""
    _default_environment()
    _stop_on_signals()
    if _rank() != 0:
        logging.disable(logging.INFO)  # torchtitan logs on every rank; one copy is enough
    if cpu.is_cpu_only():
        cpu.patch()
    try:
        _run()
    except UserError as error:
        _leave(BAD_INPUT, f"error: {error}")
    except Interrupted as stop:
        name = signal.Signals(stop.signum).name
        _leave(128 + stop.signum, f"stopped by {name}; the same command resumes the run")


def _run() -> None:
    from titan_integration.training.trainer import OdbTrainer
    from titan_integration.upstream import ConfigManager, train_main

    try:
        config = ConfigManager().parse_args()
    except (ValueError, ImportError) as error:
        raise UserError(" ".join(str(error).split())) from error
    if isinstance(config, OdbTrainer.Config):
        config.validate()
    train_main()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _default_environment() -> None:
    """Fill in what torchrun would set, for a world of one."""
    if "RANK" in os.environ:
        return
    # The only rank is its own store server: port 0 lets the system choose, without a race.
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(world, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


def _stop_on_signals() -> None:
    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)  # a second one ends the process at once
        guard = threading.Timer(STOP_GRACE_S, os._exit, args=(128 + signum,))
        guard.daemon = True
        guard.start()
        raise Interrupted(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)


def _leave(code: int, message: str) -> NoReturn:
    """Say one line (rank 0) and end this process whatever its threads are doing."""
    if _rank() == 0:
        print(message, file=sys.stderr)
    elif code == BAD_INPUT:
        # All ranks come here. torchrun ends them when the first is gone: let that be rank 0.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(STOP_GRACE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a collective that waits for a peer must not keep the process alive.
    os._exit(code)


if __name__ == "__main__":
    main()

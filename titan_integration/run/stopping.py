"""A wish to stop, by a signal or a time limit: noted at once, acted on where all ranks agree.

A Python signal handler runs when the main thread gets to it, which may be waiting in a collective
for minutes. The interpreter's wake-up descriptor has no such delay: it gets the signal's number
within the C handler, and a thread of ours reads it there.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A terminal or a scheduler signals all processes at once, and launchers pass it on: what comes
# within this time is the same request.
SAME_REQUEST_S = 0.5
TIME_LIMIT = 1000  # in the place of a signal's number


class StopRequest:
    """What this process was asked; one per process, made on the main thread.

    Until :meth:`arm`, a signal ends the process at once: there is nothing to save. Afterwards the
    first one is noted for the trainer and starts a clock, at the end of which the process ends
    whatever it is doing; a second one ends it at once.

    Attributes:
        started_s: When the process began, for time limits.
    """

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self._signum = 0
        self._armed = self._over = False
        self._within_s = 0.0
        self._stop_after_s: float | None = None
        self._on_end: Callable[[], None] = lambda: None

    def listen(self, on_end: Callable[[], None]) -> None:
        """Take over the signals; ``on_end`` runs before the process ends by itself."""
        self.started_s = time.monotonic()
        self._on_end = on_end
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for signum in SIGNALS:
            signal.signal(signum, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # A forked worker would report the signals that end it as ours.
        os.register_at_fork(after_in_child=_forget)
        threading.Thread(target=self._read, args=(reader,), name="signals", daemon=True).start()

    def arm(self, *, within_s: float, stop_after_s: float | None) -> None:
        """From now on a request is the trainer's to fulfil, in ``within_s`` seconds at most.

        Args:
            within_s: Seconds from a request to the end of the process, whatever happens.
            stop_after_s: Seconds from the process's start to a request of its own; None for none.
        """
        self._within_s, self._stop_after_s, self._armed = within_s, stop_after_s, True

    def disarm(self) -> None:
        """The run is over, well or not: a signal ends the process at once, without a word."""
        self._armed, self._over = False, True

    @property
    def wanted(self) -> int:
        """0, or the number of the signal, or ``TIME_LIMIT``."""
        if self._signum:
            return self._signum
        limit = self._stop_after_s
        over = limit is not None and time.monotonic() - self.started_s >= limit
        return TIME_LIMIT if over else 0

    def _read(self, reader: int) -> None:
        first_s = 0.0
        while True:
            signum, now = os.read(reader, 1)[0], time.monotonic()
            if signum not in SIGNALS:
                continue
            if self._over:
                self._end(signum, None)
            if not self._armed:
                self._end(signum, "with nothing to save; the same command starts again")
            if not self._signum:
                self._signum, first_s = signum, now
                threading.Thread(target=self._expire, args=(signum,), daemon=True).start()
            elif now - first_s >= SAME_REQUEST_S:
                self._end(signum, "for the second time, at once: nothing was saved; " + RESUMES)

    def _expire(self, signum: int) -> None:
        time.sleep(self._within_s)
        how = f"but not done within {self._within_s:g} s (data.stop_within_s): nothing was saved; "
        self._end(signum, None if self._over else how + RESUMES)

    def _end(self, signum: int, how: str | None) -> NoReturn:
        if how is not None and os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"stopped by {signal.Signals(signum).name} {how}\n")
            sys.stderr.flush()
        self._on_end()
        os._exit(128 + signum)


RESUMES = "the same command goes on from the newest whole checkpoint, if there is one"


def _forget() -> None:
    signal.set_wakeup_fd(-1)
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


def exit_code(wanted: int) -> int:
    """128 + signal; a time limit ends a run as the scheduler's SIGTERM would."""
    return 128 + (signal.SIGTERM if wanted == TIME_LIMIT else wanted)


def name_of(wanted: int) -> str:
    """Of what asked to stop, for messages."""
    return "data.stop_after_s" if wanted == TIME_LIMIT else signal.Signals(wanted).name


request = StopRequest()

"""Which item each worker has in hand, and a warning once that takes too long."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Protocol

logger = logging.getLogger(__name__)
# Fields of a slot.
INDEX = 0  # of the item in hand
SINCE = 1  # when work on it began, ``time.monotonic()``; 0 for none
CANCEL = 2  # not 0: stop before the next item
SLOT_SIZE = 3


class Slot(Protocol):
    """What one worker has in hand: a list, or memory shared with the process that writes it."""

    def __getitem__(self, field: int, /) -> float: ...

    def __setitem__(self, field: int, value: float, /) -> None: ...


def new_slot() -> Slot:
    """A slot for a worker of this process."""
    return [0.0] * SLOT_SIZE


def begin_item(slot: Slot, index: int) -> None:
    """Note that work on ``index`` begins now.

    A reader between these lines sees no work at all, rather than the old time with the new index.
    """
    slot[SINCE] = 0.0
    slot[INDEX] = index
    slot[SINCE] = time.monotonic()


class Watch:
    """Logs a warning when a worker is busy with one item for longer than ``timeout_s``.

    It says so again each time that the time has doubled. Its thread ends with ``stop``.

    Args:
        slots: Names of the workers, and what they have in hand.
        timeout_s: Seconds; infinity for no warnings and no thread.
    """

    def __init__(self, slots: Sequence[tuple[str, Slot]], timeout_s: float) -> None:
        self._stopped = threading.Event()
        if timeout_s < threading.TIMEOUT_MAX:
            args = (list(slots), timeout_s, self._stopped)
            threading.Thread(target=_watch, args=args, name="odb-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread; does not wait for it."""
        self._stopped.set()


def _watch(slots: Sequence[tuple[str, Slot]], timeout_s: float, stopped: threading.Event) -> None:
    due: dict[tuple[str, float], float] = {}  # by worker and start of an item: when to speak next
    pause = timeout_s
    while not stopped.wait(pause):
        now, pause, earlier, due = time.monotonic(), timeout_s, due, {}
        for name, slot in slots:
            since = slot[SINCE]
            if not since:
                continue
            after = earlier.get((name, since), timeout_s)
            if now - since >= after:
                _warn(name, slot, now - since)
                after *= 2
            due[name, since] = after
            pause = min(pause, max(0.01, since + after - now))


def _warn(name: str, slot: Slot, seconds: float) -> None:
    logger.warning(
        "dataset[%d] has been in work for %.1f s in %s: its dataset, transform or length blocks, "
        "or is very slow, and the other ranks wait for it",
        int(slot[INDEX]),
        seconds,
        name,
    )

"""The global generators of ``random``, NumPy and torch, so that an item's draws are its own."""

import logging
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

logger = logging.getLogger(__name__)
_one_at_a_time = threading.RLock()  # held by whoever has set this process's generators aside
_aside = np.random.MT19937(0)  # NumPy's while others are set aside; a new one takes 100 us
_TRIED = 16  # items at the start of a pass
_NAMES = ("random", "numpy.random", "torch")


def seed_generators(key: int) -> None:
    """Seed all three with one integer of 64 bits."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    # torch.manual_seed also goes through the devices, which takes a hundred times as long.
    torch.default_generator.manual_seed(key >> 1)


def own_generators() -> None:
    """Give a new process a NumPy generator of its own, of the kind that can be seeded.

    The one that a fork inherits may be locked by a thread that the fork did not copy.
    """
    set_bit_generator(np.random.MT19937())


@contextmanager
def set_aside(key: int, *, look: bool = True) -> Iterator[list[str]]:
    """Run a block on generators seeded by ``key``, then put the process's own back as they were.

    One block at a time in the whole process.

    Args:
        key: Seeds all three.
        look: Find out what the block drew from, which takes half of the time.
    Yields:
        A list; after the block it names the generators that the block drew from.
    """
    with _one_at_a_time:
        before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
        theirs = get_bit_generator()
        drawn: list[str] = []
        try:
            set_bit_generator(_aside)
            seed_generators(key)
            seeded = _fingerprints() if look else ()
            yield drawn
            if look:
                pairs = zip(_NAMES, seeded, _fingerprints(), strict=True)
                drawn += [name for name, before_it, now in pairs if before_it != now]
        finally:
            random.setstate(before[0])
            set_bit_generator(theirs)
            np.random.set_state(before[1])  # with the second half of a pair of normal draws
            torch.set_rng_state(before[2])


def _fingerprints() -> tuple[Any, ...]:
    drawn: Any = np.random.get_state(legacy=False)
    numpy_state = drawn["state"]["pos"], drawn["state"]["key"].tobytes(), drawn["has_gauss"]
    return random.getstate(), numpy_state, torch.get_rng_state().numpy().tobytes()


class Isolation:
    """Which items of this process run on generators that are set aside for them.

    Setting aside takes some 150 us and lets only one item run at a time, so it is only done for
    transforms that need it: the first items of a pass show whether theirs does. One that draws for
    the first time after them is not noticed.

    Args:
        shared: Items run in threads beside the user's own.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._to_try = _TRIED
        self._needed = False

    def begin_pass(self) -> None:
        """Look at the first items again: what is drawn may depend on the epoch."""
        self._to_try = _TRIED

    @contextmanager
    def item(self, key: int) -> Iterator[None]:
        """Run a block that may draw; ``key`` decides what it gets."""
        if not self._needed and self._to_try <= 0:
            yield
            return
        self._to_try -= 1
        with set_aside(key, look=not self._needed) as drawn:
            yield
        if drawn and not self._needed:
            self._needed = True
            if self._shared:
                logger.warning(
                    "dataset or transform draws from the global generator of %s in a thread: to "
                    "give the same sample every time it now runs one sample at a time, and your "
                    "own draws in the meantime may differ between runs. Use worker processes, or "
                    "rng_seed and transform(raw, generator)",
                    " and ".join(drawn),
                )

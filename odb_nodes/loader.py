"""The loader: batches of all ranks in step, and everything a training script asks of it."""

import logging
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from odb_nodes.arguments import boolean, function, integer
from odb_nodes.nodes.align_node import AlignNode
from odb_nodes.nodes.node_loader import Iteration, NodeLoader
from odb_nodes.nodes.pipeline import Collate, PipelineRoot
from odb_nodes.nodes.upstream import abandon, stop
from odb_nodes.report import LoaderReport, progress_of, report_of, steps_to_come
from odb_nodes.samples.limits import warn_of_a_long_prefetch
from odb_nodes.state.description import align_state, copy_plain, describe_state, find_align_state
from odb_nodes.state.files import load_shared, save_shared
from odb_nodes.types import OdbBatch
from odb_nodes.workers.at_exit import close_at_exit

logger = logging.getLogger(__name__)


class OdbLoader(NodeLoader[OdbBatch]):
    """A ``torchdata.nodes.Loader`` over an ``AlignNode``, yielding ``OdbBatch``.

    Every ``iter()`` without a loaded state starts the next epoch, also after a ``break``: the rest
    of an epoch that was left is not delivered any more. To go on in it instead, load the loader's
    own state: ``loader.load_state_dict(loader.state_dict())``.

    The state is that of the ``AlignNode`` alone, so prefetching, pinning and collate may differ
    when it is loaded. Use the loader as a context manager, or call ``shutdown``, to end its threads
    and worker processes early.

    Args:
        align: The aligned groups.
        collate: ``list of data -> tensors``. An IDLE step comes as a list of one masked sample.
        prefetch: Batches prepared ahead in a thread; 0 for none.
        pin_memory: Copy tensors into pinned memory.
        restart_on_stop_iteration: Iterating from a state of the end of an epoch gives the next
            epoch; else nothing.
    Raises:
        ValueError: An argument of another type or out of range.
    """

    def __init__(
        self,
        align: AlignNode,
        *,
        collate: Collate,
        prefetch: int = 2,
        pin_memory: bool = False,
        restart_on_stop_iteration: bool = True,
    ) -> None:
        prefetch = integer("prefetch", prefetch, least=0)
        function("collate", collate, "a function of a list of samples")
        self.align = align
        self._root = PipelineRoot(
            align,
            collate=collate,
            prefetch=prefetch,
            pin_memory=boolean("pin_memory", pin_memory),
        )
        super().__init__(self._root, boolean("restart", restart_on_stop_iteration))
        weakref.finalize(self, abandon, self.root).atexit = False
        close_at_exit(self)
        self._chosen_epoch: int | None = None  # by set_epoch, for the next iter()
        self._epoch, self._step = 0, 0  # of the batch delivered last
        self._waited_s, self._began_s = 0.0, time.monotonic()
        cursor = getattr(align.source.view, "cursor", None)
        warn_of_a_long_prefetch(prefetch, None if cursor is None else cursor.size)

    def __enter__(self) -> "OdbLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __len__(self) -> int:
        raise TypeError(
            "the number of steps is known only after preprocessing: estimate() says how many are "
            "to come, and progress() which part of the epoch is done"
        )

    # Where the loader stands

    @property
    def epoch(self) -> int:
        """Epoch of the batch delivered last, or of the loaded state."""
        return self._epoch if self._loaded is None else int(self._loaded["epoch"])

    @property
    def step(self) -> int:
        """Steps delivered in this epoch."""
        if self._loaded is None:
            return self._step
        return int(self._loaded["counters"]["steps"])

    @property
    def finished(self) -> bool:
        """The epoch was delivered to its end, and its end was seen."""
        if self._loaded is None:
            return self._final is not None
        return bool(self._loaded["ended"])

    @property
    def next_epoch(self) -> int:
        """The epoch that the next ``iter()`` begins, or goes on in."""
        if self._chosen_epoch is not None:
            return self._chosen_epoch
        if self._loaded is not None:
            return self.epoch + (self.finished and self.restart_on_stop_iteration)
        if self._begun:
            return self.align.epoch
        return self.epoch + 1 if self._iteration is not None else self._first_epoch()

    def progress(self) -> float | None:
        """Part of the epoch that is done, dropped samples included, in [0, 1].

        Estimated from this rank's share; None for a stream, which has no end.
        """
        return progress_of(describe_state(self.state_dict()))

    def estimate(self) -> int | None:
        """Steps to come in this epoch; None before the first step, and for a stream."""
        return steps_to_come(describe_state(self.state_dict()))

    def report(self) -> LoaderReport:
        """Padding, fill and waiting, with a window and a number of workers to try."""
        passed_s = max(1e-9, time.monotonic() - self._began_s)
        return report_of(
            describe_state(self.state_dict()),
            max_tokens=self.align.source.budget.max_tokens,
            waiting=self._waited_s / passed_s,
            exchange=self.align.transport.stats.wait_s / passed_s,
            window=self.align.source.window_size,
            workers=self._num_workers(),
        )

    def exchange_stats(self) -> dict[str, float]:
        """Of this rank since construction: payload "bytes", "rounds", "wait_s" seconds, "ranks".

        A single rank ("ranks" is 1) exchanges nothing: all its numbers are 0.
        """
        transport = self.align.transport
        stats = transport.stats
        return {
            "bytes": stats.bytes,
            "rounds": stats.rounds,
            "wait_s": stats.wait_s,
            "ranks": transport.world_size,
        }

    def fill(self) -> tuple[int, int]:
        """Samples in the window now, and its size."""
        return len(self.align.source.window), self.align.source.window_size

    # Epochs

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epochs to train, so that each is trained once, wherever a resume stands.

        ::

            for epoch in loader.epochs(3):
                for batch in loader:
                    ...

        Goes on in the epoch of a loaded state that has not ended (if nothing is left of it, its
        loop has no batch), and then with the epochs after it.

        Args:
            num_epochs: Epochs in all, from 0; at least 0.
        """
        integer("num_epochs", num_epochs, least=0)
        least = 0
        while True:
            unfinished = self._loaded is not None and not self.finished
            epoch = self.epoch if unfinished else self.next_epoch
            if self._loaded is not None and self.finished:
                epoch = self.epoch + 1
            epoch = max(least, epoch)
            if epoch >= num_epochs:
                return
            self.set_epoch(epoch)
            yield epoch
            least = epoch + 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``.

        With a loaded state this must be the epoch that the state is in (which then goes on; if
        nothing is left of it, the next ``iter()`` has no batch) or, if nothing is left of that one,
        a later one.

        Raises:
            ValueError: The loaded state is in the middle of another epoch; or the source has no
                epochs to choose from.
        """
        epoch = integer("epoch", epoch, least=0)
        view = self.align.source.view
        if not hasattr(view, "set_epoch"):
            raise ValueError("set_epoch needs a SamplerView or a StreamView at the source")
        if self._loaded is not None and not self._allows(epoch):
            raise ValueError(
                f"set_epoch({epoch}) contradicts the loaded state, which is at step {self.step} of "
                f"epoch {self.epoch}: call set_epoch({self.epoch}) to go on there, or iterate over "
                "loader.epochs(n), which knows where a state stands"
            )
        if self._loaded is not None and epoch != self.epoch:
            self._loaded = None
        self._chosen_epoch = epoch
        if self._loaded is None:
            view.set_epoch(epoch)

    def _allows(self, epoch: int) -> bool:
        """Whether the loaded state leaves a free choice of this epoch."""
        told = describe_state(self._loaded)
        nothing_left = told["remaining"] == 0 and not self._loaded["pending"]["sizes"]
        done = self.finished or nothing_left
        return epoch == self.epoch or (done and epoch > self.epoch)

    # State

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch returned last: plain values, see the docs on states."""
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume here at the next ``iter()``; the state must be of this rank and world size.

        Raises:
            StateError: The state is damaged, or of other data, another seed, rank or world size.
        """
        state: Any = align_state(state_dict)
        self.align.check_state(state)
        self._chosen_epoch = None
        super().load_state_dict(state)

    def save(self, path: str | Path) -> None:
        """Write the states of all ranks to one file; all ranks call this after the same step.

        The file is written by rank 0, whole or not at all, and ``load`` reads it on any number of
        ranks.

        Raises:
            OSError: On all ranks, if it cannot be written.
        """
        save_shared(self.state_dict(), Path(path), self.align.transport)

    def load(self, path: str | Path) -> None:
        """Resume from a file that ``save`` wrote, also on another number of ranks.

        All ranks call this together.

        Raises:
            OSError: On all ranks, if one of them cannot read it.
            StateError: As ``load_state_dict``.
        """
        self.load_state_dict(load_shared(Path(path), self.align.transport))

    def shutdown(self) -> None:
        """End all threads and worker processes, in a few seconds at most. Can be called twice."""
        self._root.stop_reading()
        self.align.shutdown()
        stop(self.root)

    # Inside

    def _begin(self) -> None:
        loaded, chosen = self._loaded, self._chosen_epoch
        if loaded is None and self._iteration is not None and self._final is None and self._step:
            logger.info(
                "epoch %d was left after step %d: what was left of it is not delivered any more; "
                "load the loader's own state_dict() to go on in it",
                self._epoch,
                self._step,
            )
        stays = loaded is not None and chosen is not None
        restart, self.restart_on_stop_iteration = self.restart_on_stop_iteration, not stays
        self.restart_on_stop_iteration = restart and not stays
        try:
            super()._begin()
        finally:
            self.restart_on_stop_iteration = restart
        self._chosen_epoch = None
        self._epoch = self.align.epoch
        self._step = (
            0
            if loaded is None or self._epoch != loaded["epoch"]
            else int(loaded["counters"]["steps"])
        )
        self._waited_s, self._began_s = 0.0, time.monotonic()

    def _next(self, iteration: Iteration[OdbBatch]) -> OdbBatch:
        started = time.monotonic()
        batch = super()._next(iteration)
        self._waited_s += time.monotonic() - started
        self._epoch, self._step = batch.info.epoch, batch.info.step + 1
        return batch

    def _note_end(self) -> None:
        # The background thread has ended; what the AlignNode says is later than its last batch.
        state: Any = self.align.state_dict()
        self._final = state

    def _say_restart(self) -> None:
        logger.info("the loaded state is of the end of epoch %d: the next begins", self.align.epoch)

    def _copy(self, state: Any) -> dict[str, Any]:
        copied: dict[str, Any] = copy_plain(find_align_state(state))
        return copied

    def _first_epoch(self) -> int:
        return int(getattr(self.align.source.view, "next_epoch", 0))

    def _num_workers(self) -> int:
        return int(getattr(self.align.source.source, "num_workers", 0))

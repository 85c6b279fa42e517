"""One rank's part in the rounds: who still expects it, and how failures and farewells travel.

Invariant: all ranks run the same sequence of collectives. A pass is a sequence of exchanges that
ends in exactly one exchange whose facts say so on every rank: no samples left, somebody failed, or
somebody stops. Until then (``open``) the others wait for this rank, so it must not just leave.
"""

import logging
import threading

import numpy as np

from odb_nodes.errors import PeerFailedError
from odb_nodes.protocol.reports import Facts, Report
from odb_nodes.protocol.transport import Int64s, Transport

logger = logging.getLogger(__name__)


class Exchange:
    """Runs exchanges over a transport, from one thread at a time.

    Args:
        transport: Collectives over the data-parallel ranks.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.lock = threading.RLock()  # held by whoever may use the transport
        self.open = False  # the other ranks expect this one in further exchanges
        self.leaving = False  # this rank wants to end the pass
        self.failure: BaseException | None = None  # what this rank raised

    def begin(self) -> None:
        """A new pass begins on all ranks."""
        self.failure, self.leaving, self.open = None, False, True

    def round(self, report: Report, agreement: int, what: str) -> Facts:
        """Exchange reports.

        Args:
            report: Of this rank.
            agreement: Digest of what must be equal on all ranks.
            what: Names the exchange in errors.
        Raises:
            PeerFailedError: Another rank failed or left, or runs something else.
            BaseException: ``failure``, if this rank reported it.
        """
        maxima = self.transport.all_max(report.encode(self.transport.rank, agreement), what)
        facts = Facts.decode(maxima)
        rank = self.transport.rank
        self.open = facts.failed_rank is None and facts.stopping_rank is None
        if facts.failed_rank is not None:
            self._raise_failure(facts.failed_rank, what)
        if facts.stopping_rank is not None and not (report.stopping or self.leaving):
            raise PeerFailedError(
                f"{what}: rank {facts.stopping_rank} closed its loader, rank {rank} did not: all "
                "ranks must stop after the same step"
            )
        if self.open and not facts.agreed:
            self.open = False
            raise PeerFailedError(
                f"{what}: the ranks do not run the same settings, epoch and step (this is rank "
                f"{rank}): build all loaders alike and load states of one moment"
            )
        return facts

    def total(self, own: Int64s) -> Int64s:
        """Sum over ranks, ``[T, 4]``; part of a round that goes on."""
        return self.transport.all_sum(own, "totals")

    def highest(self, own: Int64s) -> Int64s:
        """Maximum over ranks, ``[T]``; part of a round that goes on."""
        highest = self.transport.all_max(own.tolist(), "highest cost")
        self.transport.stats.rounds -= 1  # it is none of its own
        return np.array(highest, np.int64)

    def report_failure(self, error: BaseException, wait_s: float = 0.0) -> None:
        """Tell the others at their next exchange; wait for that at most ``wait_s`` seconds."""
        self.failure = self.failure or error
        if self.open:
            reporter = threading.Thread(target=self._last, args=(Report(failed=True),), daemon=True)
            reporter.start()
            reporter.join(wait_s)

    def leave(self) -> None:
        """Take part in one more exchange that ends the pass, if one is still expected.

        Raises:
            PeerFailedError: The others did not come.
        """
        self.leaving = True
        with self.lock:
            if self.open:
                self.open = False
                self.round(Report(stopping=True), 0, "closing")

    def _last(self, report: Report) -> None:
        try:
            with self.lock:
                if self.open:
                    self.round(report, 0, "reporting a failure")
        except BaseException as error:
            logger.debug("last exchange of rank %d: %r", self.transport.rank, error)

    def _raise_failure(self, failed_rank: int, what: str) -> None:
        own, cause = self.failure, ""
        if failed_rank == self.transport.rank and own is not None:
            notes = getattr(own, "__notes__", [])
            cause = " ".join([f"{type(own).__name__}: {own}", *notes[:1]])
        cause = self.transport.share_text(cause, what)
        if own is not None:
            raise own
        raise PeerFailedError(f"{what}: rank {failed_rank} failed: {cause}")

"""One rank's part in the rounds: who still expects it, and how failures and farewells travel.

Invariant: all ranks run the same sequence of collectives. A pass is a sequence of exchanges; the
first only compares what the ranks start from, and the last is the one whose facts say on every rank
that the pass is over: no samples left, somebody failed, or somebody stops. From ``begin`` to that
exchange the pass is open: the other ranks wait for this one, so it must not just leave.

How a pass ends early, with rank 1 failing while rank 0 trains:

    rank 0: round(report)              rank 1: fail(error), round(Report(failed=True))
            facts.failed_rank == 1             facts.failed_rank == 1
            gather the cause                   gather the cause
            raise PeerFailedError              raise error
"""

import logging
import threading
from enum import Enum

import numpy as np

from odb_nodes.errors import PeerFailedError
from odb_nodes.protocol.agreement import Agreement, explain
from odb_nodes.protocol.reports import Facts, Report
from odb_nodes.protocol.transport import Int64s, Transport

logger = logging.getLogger(__name__)
_LONGEST_CAUSE = 1024  # characters of a failure that travel
_NOWHERE = Agreement(settings={})  # of a report that only says that this rank fails or stops


class Phase(Enum):
    """Where a rank stands in a pass."""

    CLOSED = "closed"  # no rank waits for this one
    OPEN = "open"  # the other ranks expect it in the next exchange
    LEAVING = "leaving"  # open, and this rank wants to end the pass


class Exchange:
    """Runs exchanges over a transport, from one thread at a time.

    Args:
        transport: Collectives over the data-parallel ranks.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.lock = threading.RLock()  # held by whoever may use the transport
        self._phase = Phase.CLOSED
        self._failure: BaseException | None = None

    @property
    def is_open(self) -> bool:
        """The other ranks expect this one in further exchanges."""
        return self._phase is not Phase.CLOSED

    @property
    def failure(self) -> BaseException | None:
        """What this rank raised first in this pass."""
        return self._failure

    def begin(self) -> None:
        """A new pass begins on all ranks."""
        self._failure, self._phase = None, Phase.OPEN

    def end(self) -> None:
        """The pass is over on all ranks: nobody waits for this one any more."""
        self._phase = Phase.CLOSED

    def fail(self, error: BaseException) -> None:
        """Remember the first error of this rank; its next report must say so."""
        self._failure = self._failure or error

    def prepare_to_leave(self) -> None:
        """This rank will leave: another one that stops first is then no error here."""
        if self.is_open:
            self._phase = Phase.LEAVING

    def round(self, report: Report, agreement: Agreement, what: str) -> Facts:
        """Exchange reports.

        Args:
            report: Of this rank.
            agreement: What must be equal on all ranks.
            what: Names the exchange in errors.
        Raises:
            PeerFailedError: Another rank failed or left, or runs something else.
            BaseException: ``failure``, if this rank reported it.
        """
        rank, leaving = self.transport.rank, self._phase is Phase.LEAVING
        row = report.encode(rank, agreement.digest)
        facts = Facts.decode(self.transport.all_max(row, what))
        if facts.failed_rank is not None:
            self.end()
            self._raise_failure(facts.failed_rank, what)
        if facts.stopping_rank is not None:
            self.end()
            if not (report.stopping or leaving):
                raise PeerFailedError(
                    f"{what}: rank {facts.stopping_rank} closed its loader, rank {rank} did not: "
                    "all ranks must stop after the same step"
                )
        elif not facts.agreed:
            self.end()
            different = explain(self.transport.gather(agreement.pack(), what))
            raise PeerFailedError(
                f"{what}: the ranks do not agree: {different} (this is rank {rank}): build all "
                "loaders alike and load states of one moment"
            )
        return facts

    def totals(self, own: Int64s, *, with_costs: bool) -> Int64s:
        """What steps hold on all ranks; part of a round that goes on.

        Args:
            own: Samples, tokens, loss tokens and cost of every step on this rank, ``[T, 4]``.
            with_costs: Exchange the costs too.
        Returns:
            Sums over ranks ``[T, 3]``; with costs ``[T, 5]``, the highest cost of a rank last.
        """
        if not with_costs:
            return self.transport.all_sum(own[:, :3], "totals")
        highest = self.transport.all_max(own[:, 3].tolist(), "highest costs")
        self.transport.stats.rounds -= 1  # it is none of its own
        return np.column_stack([self.transport.all_sum(own, "totals"), highest])

    def share_filler(self, blob: bytes | None) -> bytes | None:
        """The packed filler of the first rank that has one; part of a round that goes on.

        Called on all ranks if the facts of the round say that one of them lacks a filler.

        Args:
            blob: This rank's filler; None if it has none that can be packed.
        """
        transport, what = self.transport, "filler for an IDLE rank"
        offer = transport.world_size - transport.rank if blob else 0
        [best] = transport.all_max([offer], what)
        if not best:
            return None
        donor = transport.world_size - best
        return transport.gather(blob if blob and transport.rank == donor else b"", what)[donor]

    def report_failure(self, error: BaseException, wait_s: float = 0.0) -> None:
        """Tell the others at their next exchange; wait for that at most ``wait_s`` seconds."""
        self.fail(error)
        if self.is_open:
            reporter = threading.Thread(target=self._last, args=(Report(failed=True),), daemon=True)
            reporter.start()
            reporter.join(wait_s)

    def leave(self) -> None:
        """Take part in one more exchange that ends the pass, if one is still expected.

        Raises:
            PeerFailedError: The others did not come.
        """
        self.prepare_to_leave()
        with self.lock:
            if self.is_open:
                try:
                    self.round(Report(stopping=True), _NOWHERE, "closing")
                finally:
                    self.end()

    def _last(self, report: Report) -> None:
        try:
            with self.lock:
                if self.is_open:
                    self.round(report, _NOWHERE, "reporting a failure")
        except BaseException as error:
            logger.debug("last exchange of rank %d: %r", self.transport.rank, error)

    def _raise_failure(self, failed_rank: int, what: str) -> None:
        own, cause = self._failure, ""
        if failed_rank == self.transport.rank and own is not None:
            notes = getattr(own, "__notes__", [])
            cause = " ".join([f"{type(own).__name__}: {own}", *notes[:1]])[:_LONGEST_CAUSE]
        causes = self.transport.gather(cause.encode(errors="replace"), what)
        if own is not None:
            raise own
        cause = causes[failed_rank].decode(errors="replace")
        raise PeerFailedError(f"{what}: rank {failed_rank} failed: {cause}")

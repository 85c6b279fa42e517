"""Node: every rank emits the same number of steps, and every view exactly once."""

import contextlib
import threading
from collections.abc import Mapping
from typing import Any, Unpack

from odb_nodes.arguments import positive_number
from odb_nodes.batching.cost import cost_target
from odb_nodes.errors import PeerFailedError, StateError
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.nodes.pass_end import check_coverage, say_if_empty
from odb_nodes.nodes.starting_point import StartingPoint
from odb_nodes.nodes.upstream import BaseNode
from odb_nodes.protocol.agreement import Agreement
from odb_nodes.protocol.exchange import Exchange
from odb_nodes.protocol.proposal import Proposal
from odb_nodes.protocol.reports import Report
from odb_nodes.protocol.settings import Alignment, AlignmentOptions
from odb_nodes.protocol.steps import plan_steps, step_order, steps_to_quota
from odb_nodes.protocol.transport import Transport, make_transport
from odb_nodes.samples.buffered import mask_labels
from odb_nodes.samples.rounds import Room, Round, empty_round, own_counts, round_from_state
from odb_nodes.state.counters import Counters
from odb_nodes.state.description import copy_plain, state_for_rank
from odb_nodes.state.schema import VERSION, AlignState
from odb_nodes.types import AlignedGroup, Sample, View

_GOODBYE_S = 10.0


class AlignNode(BaseNode[AlignedGroup]):
    """Agrees with the other ranks, round by round, on steps; yields one group per step.

    A sample is, at every moment, at exactly one of: the view (not taken, or in flight in a mapper),
    the window (held), the round (pending), delivered, dropped. A step counts as delivered when it
    is yielded.

    What a rank communicates next depends on exchanged values only. A rank whose source raises
    says so in its next report and raises its own exception; the others raise ``PeerFailedError``.
    Before the first step the ranks compare what they start from: settings, place and data.

    Args:
        source: A ``GroupingNode``, whose window the policy works on.
        process_group: A gloo group of exactly the data-parallel ranks that nothing else uses;
            None is a world of one.
        transport: Collectives of another kind, instead of ``process_group``.
        timeout_s: Longest wait for the slowest rank in one exchange.
        filler: Data of a sample to be masked where this rank is IDLE; by default the shortest one
            of the pass, of this rank or borrowed from a peer.
        alignment: The fields of ``Alignment`` by name: ``join``, ``policy``, ``steps_per_round``,
            ``sample_quota``, ``idle``, ``totals``.
    Raises:
        ValueError: An argument out of range.
        PeerFailedError: From ``next``: another rank failed, left, did not answer in time, or
            starts from something else.
        CoverageError: From ``next``: a joined epoch did not emit exactly its views.
    """

    def __init__(
        self,
        source: GroupingNode,
        *,
        process_group: Any = None,
        transport: Transport | None = None,
        timeout_s: float = 600.0,
        filler: Mapping[str, Any] | None = None,
        **alignment: Unpack[AlignmentOptions],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(source, GroupingNode):
            raise ValueError(f"source must be a GroupingNode, got {type(source).__name__}")
        self.alignment = Alignment(**alignment)
        self.source = source
        self._filler = filler
        timeout_s = positive_number("timeout_s", timeout_s)
        self.exchange = Exchange(make_transport(process_group, timeout_s, transport))
        self._start = StartingPoint(source, self.alignment, self.transport)
        self._room = Room(
            layout=source.layout,
            max_tokens=source.budget.max_tokens,
            world_size=self.transport.world_size,
            shares_cost=self.alignment.totals and source.layout.shares_cost,
        )
        self._source_state: Any = None  # taken once per round, not once per step
        self._start_pass(quota_done=0)

    @property
    def transport(self) -> Transport:
        """The collectives in use, with their statistics."""
        return self.exchange.transport

    @property
    def epoch(self) -> int:
        """Pass over the data."""
        return self.source.epoch

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        self.leave()
        super().reset(initial_state)
        self.exchange.begin()
        try:
            if initial_state is None:
                self.source.reset(None)
                self._start_pass(quota_done=0)
            else:
                self._restore(initial_state)
        except BaseException as error:
            self.exchange.report_failure(error)
            raise

    def next(self) -> AlignedGroup:
        exchange = self.exchange
        with exchange.lock:
            if exchange.failure is not None:
                raise exchange.failure
            if not exchange.is_open:  # ended, or left while a thread was on its way here
                raise StopIteration
            try:
                return self._next()
            except StopIteration:
                exchange.end()
                raise
            except BaseException as error:
                exchange.fail(error)
                if isinstance(error, PeerFailedError):
                    exchange.end()
                raise

    def get_state(self) -> AlignState:  # type: ignore[override]
        if self._source_state is None:
            self._source_state = self.source.state_dict()
        return {
            "version": VERSION,
            "settings": copy_plain(self._start.order_settings),
            "rank": self.transport.rank,
            "world_size": self.transport.world_size,
            "epoch": self.source.epoch,
            "counters": self.counters.to_state(),
            "quota_done": self._quota_done,
            "pending": self._round.to_state(),
            "ended": self._ended,
            "source": copy_plain(self._source_state),
        }

    def check_state(self, state: Any) -> None:
        """Raise ``StateError`` if ``reset`` would not accept this state; changes nothing."""
        self.source.check_state(self._fitting(state)["source"])

    def leave(self) -> None:
        """End the pass before its end, together with the other ranks, who must do the same.

        Raises:
            PeerFailedError: The others did not come within ``timeout_s``.
        """
        if self.exchange.is_open:
            self.exchange.prepare_to_leave()
            self.source.interrupted = True  # ends a refill that is under way in another thread
            self.source.pause()
            self.exchange.leave()

    def shutdown(self) -> None:
        """Close for good: waits a few seconds at most for the other ranks, ends all workers."""
        leaver = threading.Thread(target=self._leave_quietly, daemon=True)
        leaver.start()
        leaver.join(_GOODBYE_S)
        self.exchange.end()
        self.source.shutdown()
        self.transport.close()

    def _leave_quietly(self) -> None:
        with contextlib.suppress(PeerFailedError):  # it is closing, whatever the others do
            self.leave()

    def _start_pass(self, quota_done: int) -> None:
        self.counters = Counters()
        self._quota_done = quota_done
        self._ended = False
        self._agreed_start = False  # the ranks have compared what this pass starts from
        if self._filler is not None:
            self.source.filler.use(Sample(View(self.epoch, 0, 0), self._filler, 1))
        self._set_round(empty_round(self.source.sample_refs.join([]), self._room))

    def _set_round(self, round_: Round) -> None:
        self._round = round_
        self._source_state = None

    def _next(self) -> AlignedGroup:
        quota = self.alignment.sample_quota
        while quota is None or self._quota_done < quota:
            if not self._agreed_start:
                self._agree_on_start()
            while not self._round.left:
                if not self._open_round():
                    raise StopIteration
            group = self._deliver()
            if group is not None:
                return group
        self._ended = True
        raise StopIteration

    def _agree_on_start(self) -> None:
        """The first exchange of a pass: all ranks run the same settings from the same place."""
        self._agreed_start = True
        what = f"start of epoch {self.epoch}"
        facts = self.exchange.round(Report(), self._here(), what)
        if facts.stopping_rank is not None:
            raise StopIteration

    def _open_round(self) -> bool:
        """Agree on the next steps. Returns False at the end of the iteration."""
        self._source_state = None
        proposal = self._propose()
        what = f"epoch {self.epoch}, round {self.counters.rounds}"
        facts = self.exchange.round(proposal.report, self._here(), what)
        if facts.stopping_rank is not None:
            return False
        steps = plan_steps(facts, self.alignment.rule, join=self.alignment.join)
        if steps == 0:
            return self._end_pass()
        if facts.any_lacks_filler and self.alignment.idle == "emit":
            self.source.filler.borrow(self.exchange.share_filler)
        groups = proposal.settle(self.source.window, steps)
        self.counters.rounds += 1
        self.counters.splits += max(0, sum(map(bool, groups)) - len(proposal.groups))
        self.counters.recirculated += sum(map(len, proposal.groups[steps:]))
        self._settle(groups, steps)
        return True

    def _propose(self) -> Proposal:
        source, alignment, counters = self.source, self.alignment, self.counters
        if source.layout.has_target:
            source.window.aim(
                cost_target(counters.total_cost, counters.total_tokens, source.budget.max_tokens)
            )
        capacity = alignment.capacity(source.window_size, counters, self.transport.world_size)
        try:
            proposal = alignment.rule.propose(source.window, source.refill, capacity)
        except BaseException as error:
            self.exchange.fail(error)
            return Proposal(groups=[], taken=False, report=Report(failed=True))
        if source.interrupted:
            return Proposal(groups=[], taken=False, report=Report(stopping=True))
        return proposal.lacking_filler() if source.filler.missing else proposal

    def _settle(self, groups: list[list[int]], steps: int) -> None:
        """Turn this rank's groups into the steps of the round, in the order all ranks share."""
        source = self.source
        order = step_order(steps, self._start.order_epoch(self.epoch), self.counters.steps)
        taken = [source.take(group) for group in groups]
        buffered = [taken[slot] for slot in order]
        own = own_counts(buffered, source.layout)
        totals = own[:, :3]
        if self.alignment.totals:
            totals = self.exchange.totals(own, with_costs=self._room.shares_cost)
        refs = source.sample_refs.join(item.ref for step in buffered for item in step)
        round_ = Round(buffered, refs, own, totals, self._room)
        if self.alignment.sample_quota is not None:
            missing = self.alignment.sample_quota - self._quota_done
            source.put_back(round_.cut(steps_to_quota(totals[:, 0], missing)))
        self._set_round(round_)
        if self.counters.rounds == 1:
            self._start.compare_streams(round_.to_state()["refs"])

    def _deliver(self) -> AlignedGroup | None:
        """The next step of the round; None if it is IDLE and such steps are skipped."""
        round_, source = self._round, self.source
        if self._source_state is None:
            self._source_state = self.source.state_dict()
        samples, info = round_.next_step(self.counters.steps, self.epoch)
        digest = round_.digests[round_.at]
        if not samples and self.alignment.idle == "emit":
            samples = [mask_labels(source.filler.sample())]
        round_.pop()
        self.counters.add(info, digest)
        self._quota_done += info.total_num_samples
        return AlignedGroup(samples, info) if samples else None

    def _end_pass(self) -> bool:
        """Check the pass; go on with the next one if a quota asks for it."""
        source, counters, quota = self.source, self.counters, self.alignment.sample_quota
        if quota is None:
            self.exchange.end()
        if self.alignment.join:
            check_coverage(source, counters, self.transport.rank)
        say_if_empty(source, counters)
        if quota is None or counters.total_emitted == 0:
            self._ended = True
            return False
        source.reset(None)
        self._start_pass(quota_done=self._quota_done)
        self._agree_on_start()
        return True

    def _here(self) -> Agreement:
        return self._start.agreement(self.epoch, self.counters.steps)

    def _fitting(self, state: Any) -> AlignState:
        rank, world_size = self.transport.rank, self.transport.world_size
        settings = self._start.order_settings
        return state_for_rank(state, settings, rank=rank, world_size=world_size)

    def _restore(self, initial_state: dict[str, Any]) -> None:
        state = self._fitting(initial_state)
        self._start.say_what_changed(state["settings"])
        self.source.reset(state["source"])
        self.source.epoch = state["epoch"]
        round_ = round_from_state(state["pending"], self.source.sample_refs, self._room)
        self._start_pass(quota_done=state["quota_done"])
        self.counters = Counters.from_state(state["counters"])
        self._ended = state["ended"]
        if self._ended and round_.left:
            raise StateError(f"state has ended and still has {round_.left} steps to deliver")
        self._set_round(round_)

"""Node: every rank emits the same number of steps, and every view exactly once."""

import logging
import threading
from typing import Any, Literal

import numpy as np
from torchdata.nodes import BaseNode

from odb_nodes.batching.cost import cost_target
from odb_nodes.errors import CoverageError, PeerFailedError
from odb_nodes.nodes.buffered import mask_labels
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.nodes.rounds import Room, Round, empty_round, own_counts, round_from_state
from odb_nodes.nodes.sampler_view import SamplerView
from odb_nodes.protocol.exchange import Exchange
from odb_nodes.protocol.proposal import Proposal
from odb_nodes.protocol.reports import Report
from odb_nodes.protocol.settings import AlignmentSettings
from odb_nodes.protocol.steps import plan_steps, step_order, steps_to_quota
from odb_nodes.protocol.transport import Int64s, Transport, make_transport
from odb_nodes.state.counters import Counters
from odb_nodes.state.description import copy_plain, state_for_rank
from odb_nodes.state.permutation import key64
from odb_nodes.state.schema import VERSION
from odb_nodes.types import AlignedGroup

logger = logging.getLogger(__name__)
_MASK = (1 << 64) - 1
_GOODBYE_S = 10.0


class AlignNode(BaseNode[AlignedGroup]):
    """Agrees with the other ranks, round by round, on steps; yields one group a step.

    Ownership of a sample, at every moment exactly one of: the view (not taken, or in flight in a
    mapper), the window (held), the round (pending), delivered, dropped. ``state_dict`` describes
    the node after its last yielded step; a step counts as delivered when it is yielded.

    What a rank communicates next depends on exchanged values only. A rank whose source raises
    says so in its next report and raises its own exception; the others raise ``PeerFailedError``.

    Args:
        source: A ``GroupingNode``, whose window the policy works on.
        process_group: A gloo group of exactly the data-parallel ranks that nothing else uses;
            None is a world of one.
        join: A pass ends when every view of every rank is emitted, ranks that run out early
            being IDLE; else as soon as one rank has nothing left, without any IDLE step. What the
            others then still hold is left behind.
        policy: "sliding" or "tumbling", see ``odb_nodes.protocol.alignment``.
        steps_per_round: Most steps between two exchanges; default by policy (sliding as many as
            take half a window, up to 8, tumbling as many as the window gives).
        sample_quota: End at the first step at which all ranks together have emitted this many
            samples since the start of the iteration, over as many passes as that takes.
        idle: "emit" a masked one-sample batch where a rank has nothing (FSDP and DDP need the
            step to run), or "skip" it.
        timeout_s: Longest wait for the slowest rank in one exchange.
        totals: Also exchange the totals of ``StepInfo``; without it they are this rank's own.
    Raises:
        ValueError: An argument out of range.
        PeerFailedError: From ``next``: another rank failed, left, or did not answer in time.
        CoverageError: From ``next``: a joined epoch did not emit exactly its views.
    """

    SOURCE_KEY = "source"

    def __init__(
        self,
        source: GroupingNode,
        *,
        process_group: Any = None,
        join: bool = True,
        policy: Literal["sliding", "tumbling"] = "sliding",
        steps_per_round: int | None = None,
        sample_quota: int | None = None,
        idle: Literal["emit", "skip"] = "emit",
        timeout_s: float = 600.0,
        totals: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(source, GroupingNode):
            raise ValueError(f"source must be a GroupingNode, got {type(source).__name__}")
        self._rules = AlignmentSettings(
            join=join,
            policy_name=policy,
            steps_per_round=steps_per_round,
            sample_quota=sample_quota,
            idle=idle,
            totals=totals,
        )
        self.source = source
        self.exchange = Exchange(make_transport(process_group, timeout_s))
        self._room = Room(
            layout=source.layout,
            max_tokens=source.budget.max_tokens,
            world_size=self.exchange.transport.world_size,
            shares_cost=totals and source.layout.shares_cost,
        )
        self._quota = sample_quota
        self._source_state: dict[str, Any] | None = None  # taken once a round, not once a step
        view: Any = getattr(source.source, "view", None)
        order = view.describe() if isinstance(view, SamplerView) else ""
        settings = f"{self._settings()} {self._rules.describe()} {order}"
        self._settings_key = key64(*settings.encode())
        self._start_pass(quota_done=0)

    @property
    def transport(self) -> Transport:
        """The collectives in use, with their statistics."""
        return self.exchange.transport

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
        except Exception as error:
            self.exchange.report_failure(error)
            raise

    def next(self) -> AlignedGroup:
        with self.exchange.lock:
            if self.exchange.failure is not None:
                raise self.exchange.failure
            if not self.exchange.open:  # ended, or left while a thread was on its way here
                raise StopIteration
            try:
                return self._next()
            except StopIteration:
                self.exchange.open = False
                raise
            except BaseException as error:
                self.exchange.failure = self.exchange.failure or error
                if isinstance(error, PeerFailedError):
                    self.exchange.open = False
                raise

    def get_state(self) -> dict[str, Any]:
        if self._source_state is None:
            self._source_state = self.source.state_dict()
        return {
            "version": VERSION,
            "settings": self._settings(),
            "rank": self.transport.rank,
            "world_size": self.transport.world_size,
            "epoch": self.source.epoch,
            "counters": self.counters.to_state(),
            "quota_done": self._quota_done,
            "pending": self._round.to_state(),
            self.SOURCE_KEY: copy_plain(self._source_state),
        }

    def leave(self) -> None:
        """End the pass before its end, together with the other ranks, who must do the same.

        Raises:
            PeerFailedError: The others did not come within ``timeout_s``.
        """
        if self.exchange.open:
            self.exchange.leaving = True
            self.source.interrupted = True  # ends a refill that is under way in another thread
            self.source.shutdown()
            self.exchange.leave()

    def shutdown(self) -> None:
        """Close for good: waits a few seconds at most for the other ranks, ends all workers."""
        leaver = threading.Thread(target=self._leave_quietly, daemon=True)
        leaver.start()
        leaver.join(_GOODBYE_S)
        self.exchange.open = False
        self.source.shutdown()

    def _leave_quietly(self) -> None:
        try:
            self.leave()
        except PeerFailedError as error:
            logger.debug("closing: %s", error)

    def _start_pass(self, quota_done: int) -> None:
        self.counters = Counters()
        self._quota_done = quota_done
        self._set_round(empty_round(self.source.sample_refs.join([]), self._room))

    def _set_round(self, round_: Round) -> None:
        self._round = round_
        self._source_state = None

    def _next(self) -> AlignedGroup:
        while self._quota is None or self._quota_done < self._quota:
            while not self._round.left:
                if not self._open_round():
                    raise StopIteration
            group = self._deliver()
            if group is not None:
                return group
        raise StopIteration

    # One round

    def _open_round(self) -> bool:
        """Agree on the next steps. Returns False at the end of the iteration."""
        self._source_state = None
        proposal = self._propose()
        what = f"epoch {self.source.epoch}, round {self.counters.rounds}"
        facts = self.exchange.round(proposal.report, self._agreement(), what)
        if facts.stopping_rank is not None:
            return False
        steps = plan_steps(facts, self._rules.policy, join=self._rules.join)
        if steps == 0:
            return self._end_pass()
        groups = proposal.settle(self.source.window, steps)
        self.counters.rounds += 1
        self.counters.splits += max(0, sum(map(bool, groups)) - len(proposal.groups))
        offered = proposal.groups[steps:]
        self.counters.recirculated += sum(map(len, offered))
        self._settle(groups, steps)
        return True

    def _propose(self) -> Proposal:
        source, rules, counters = self.source, self._rules, self.counters
        if source.layout.has_target:
            source.window.aim(
                cost_target(counters.total_cost, counters.total_tokens, source.budget.max_tokens)
            )
        capacity = rules.capacity(source.window_size, counters, self.transport.world_size)
        try:
            proposal = rules.policy.propose(source.window, source.refill, capacity)
        except Exception as error:
            self.exchange.failure = error
            return Proposal(groups=[], taken=False, report=Report(failed=True))
        if source.interrupted:
            return Proposal(groups=[], taken=False, report=Report(stopping=True))
        return proposal

    def _settle(self, groups: list[list[int]], steps: int) -> None:
        """Turn this rank's groups into the steps of the round, in the order all ranks share."""
        source = self.source
        order = step_order(steps, self.source.epoch, self.counters.steps)
        taken = [source.take(group) for group in groups]
        buffered = [taken[slot] for slot in order]
        own = own_counts(buffered, source.layout)
        refs = source.sample_refs.join(held.ref for step in buffered for held in step)
        totals = self._totals(own)
        round_ = Round(buffered, refs, own, totals, self._room)
        if self._quota is not None:
            kept = steps_to_quota(totals[:, 0], self._quota - self._quota_done)
            source.put_back(round_.cut(kept))
        self._set_round(round_)

    def _totals(self, own: Int64s) -> Int64s:
        """What the steps of a round hold on all ranks, ``[T, 3]`` or, with costs, ``[T, 5]``."""
        if not self._rules.totals:
            return own[:, :3]
        if not self._room.shares_cost:
            return self.exchange.total(own[:, :3])
        highest = self.exchange.highest(own[:, 3])
        return np.column_stack([self.exchange.total(own), highest])

    def _deliver(self) -> AlignedGroup | None:
        """The next step of the round; None if it is IDLE and such steps are skipped."""
        round_, source = self._round, self.source
        if self._source_state is None:
            self._source_state = source.state_dict()
        samples, info = round_.next_step(self.counters.steps, source.epoch)
        digest = round_.digests[round_.at]
        if not samples and self._rules.idle == "emit":
            samples = [mask_labels(source.filler.sample())]
        round_.pop()
        self.counters.add(info, digest)
        self._quota_done += info.total_num_samples
        return AlignedGroup(samples, info) if samples else None

    def _end_pass(self) -> bool:
        """Check the pass; go on with the next one if a quota asks for it."""
        source, counters = self.source, self.counters
        if self._rules.join:
            self.exchange.open = self._quota is not None  # else nobody waits for us any more
            seen = (counters.digest + source.drops_digest()) & _MASK
            if seen != source.expected_digest():
                raise CoverageError(
                    f"rank {self.transport.rank}, epoch {source.epoch}: {counters.emitted} samples "
                    f"emitted and {sum(source.all_drops().values())} dropped are not this rank's "
                    "views, each once: do the states loaded on the ranks belong together?"
                )
        if self._quota is None or counters.total_emitted == 0:
            return False
        source.reset(None)
        self._start_pass(quota_done=self._quota_done)
        return True

    def _agreement(self) -> int:
        """What must be equal on all ranks in a round, as one non-negative integer."""
        return key64(self._settings_key, self.source.epoch, self.counters.steps) >> 2

    def _settings(self) -> dict[str, Any]:
        return self._rules.order_settings(self.source.describe(), self.source.window_size)

    # State

    def _restore(self, state: dict[str, Any]) -> None:
        rank, world_size = self.transport.rank, self.transport.world_size
        state = state_for_rank(state, self._settings(), rank=rank, world_size=world_size)
        self.source.reset(state[self.SOURCE_KEY])
        round_ = round_from_state(state["pending"], self.source.sample_refs, self._room)
        self._start_pass(quota_done=state["quota_done"])
        self.counters = Counters.from_state(state["counters"])
        self._set_round(round_)

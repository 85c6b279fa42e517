"""One rank of a small world: everything the real pure functions can make it do, each thing once.

A rank's next move depends on its share, its window and the agreed number of steps, and on nothing
that other ranks hold. So moves are computed once and looked up in every world that needs them.
That is sound only if a window is no more than the samples in it; every move therefore also checks
that the window that lived through it offers what a window built anew from the same samples offers.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.layouts import find_layout
from odb_nodes.batching.window import Window, age_of, make_key
from odb_nodes.protocol import steps as protocol_steps
from odb_nodes.protocol.policies import find_policy
from odb_nodes.protocol.policy import Policy
from odb_nodes.protocol.proposal import Proposal
from odb_nodes.protocol.reports import Facts
from tools.data.workloads import fewest_groups

Ages = tuple[int, ...]
Row = tuple[int, ...]  # an encoded report


# Packed groups are cut to a cost. The target is not that of the exchange, but any must do. Lengths
# 2 and 3 cost 2.4 and 3.9: three of 2 are over a budget of 5 alone, two of 3 are over the target.
COST = Cost(1.0, 0.1)
TARGET = 7.5


class ViolationError(Exception):
    """A guarantee does not hold."""


def demand(holds: bool, message: str) -> None:
    """Raise ``ViolationError`` unless it holds."""
    if not holds:
        raise ViolationError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What all ranks of a world share."""

    policy: str
    layout: str
    budget: int
    window: int
    capacity: int | None

    def make_window(self) -> Window:
        """An empty window."""
        window = Window(TokenBudget(self.budget), layout=find_layout(self.layout, cost=COST))
        window.aim(TARGET if self.layout == "packed" else None)
        return window


class Source:
    """A rank's view and the refill that reads it."""

    def __init__(self, lengths: Sequence[int], taken: int, size: int) -> None:
        self.lengths = lengths
        self.taken = taken
        self.size = size

    def refill(self, window: Window) -> bool:
        """See ``Policy.propose``."""
        while len(window) < self.size:
            if self.taken == len(self.lengths):
                return False
            window.add(make_key(self.lengths[self.taken], self.taken))
            self.taken += 1
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """What a rank does in a round.

    Attributes:
        groups: Ages of the samples of each step, before the common order.
        sizes: Samples of each step.
        active: Steps that are not IDLE.
        after: The rank afterwards.
    """

    groups: tuple[Ages, ...]
    sizes: tuple[int, ...]
    active: int
    after: "Node"


class Node:
    """A rank between two rounds.

    Attributes:
        taken: Samples taken from the view.
        held: Ages in the window.
        offer: What it proposes in the next round.
        row: Its report, encoded.
        available: Ages it holds once its window is filled for the next round.
    """

    def __init__(self, model: "RankModel", taken: int, held: Ages) -> None:
        self.model, self.taken, self.held = model, taken, held
        _, source, self._policy, self.offer = self._propose()
        self.available = frozenset(held) | frozenset(range(taken, source.taken))
        self.exhausted = source.taken == len(model.lengths)
        self.row: Row = tuple(self.offer.report.encode(0, 0))
        self._targets: dict[tuple[Row, bool], int] = {}
        self._moves: dict[int, Move] = {}
        self._check_offer()

    def target(self, maxima: Row, join: bool) -> int:
        """T as this rank computes it, with a policy object that saw this rank's data alone."""
        key = (maxima, join)
        if key not in self._targets:
            facts = Facts.decode(maxima)
            self._targets[key] = protocol_steps.plan_steps(facts, self._policy, join=join)
        return self._targets[key]

    def move(self, steps: int) -> Move:
        """This rank's part of a round of ``steps`` steps."""
        if steps not in self._moves:
            self._moves[steps] = self._move(steps)
        return self._moves[steps]

    def _propose(self) -> tuple[Window, Source, Policy, Proposal]:
        setting, lengths = self.model.setting, self.model.lengths
        window = setting.make_window()
        for age in self.held:
            window.add(make_key(lengths[age], age))
        source = Source(lengths, self.taken, setting.window)
        policy = copy.copy(find_policy(setting.policy))
        capacity = self.model.capacity(policy, self.taken, len(self.held))
        return window, source, policy, policy.propose(window, source.refill, capacity)

    def _move(self, steps: int) -> Move:
        window, source, policy, offer = self._propose()
        groups = tuple(tuple(map(age_of, group)) for group in offer.settle(window, steps))
        left = [age_of(key) for group in window.partition() for key in group]
        self._check_move(groups, left, steps)
        after = self.model.node(source.taken, tuple(sorted(left)))
        capacity = self.model.capacity(policy, source.taken, len(left))
        again = policy.propose(window, source.refill, capacity)
        demand(
            (again.groups, again.report) == (after.offer.groups, after.offer.report),
            "a window built anew from the same samples goes on in another way",
        )
        sizes = tuple(map(len, groups))
        return Move(groups=groups, sizes=sizes, active=sum(map(bool, sizes)), after=after)

    def _check_offer(self) -> None:
        report, offered = self.offer.report, [age_of(k) for g in self.offer.groups for k in g]
        lengths = self.model.lengths
        demand(report.samples == len(self.available), "the report counts other samples")
        demand(report.groups == len(self.offer.groups), "the report counts other groups")
        demand((report.groups == 0) == (report.samples == 0), "samples without a group")
        demand(report.exhausted <= self.exhausted, "exhausted, but its view has more")
        demand(len(set(offered)) == len(offered), "a sample is offered twice")
        demand(self.available.issuperset(offered), "a sample is offered that is not there")
        demand(tuple(report.encode(3, 0)) == self.row, "the report of a healthy rank names it")
        self._check_budget([[age_of(key) for key in group] for group in self.offer.groups])
        if not self.offer.taken:
            demand(len(offered) == len(self.available), "an offer leaves samples out")
            self._check_fewest([[lengths[age_of(k)] for k in group] for group in self.offer.groups])

    def _check_move(self, groups: tuple[Ages, ...], left: list[int], steps: int) -> None:
        emitted = [age for group in groups for age in group]
        tokens = [self._weight([self.model.lengths[age] for age in group]) for group in groups]
        demand(len(groups) == steps, f"G1: {len(groups)} steps emitted, {steps} agreed")
        demand(
            sorted([*emitted, *left]) == sorted(self.available),
            f"G4: of {sorted(self.available)}, {emitted} were emitted and {left} are held",
        )
        active = sum(map(bool, groups))
        demand(active >= min(1, len(self.available)), "G3: a rank with samples emits none")
        demand(active == min(steps, len(self.available)), "a step is IDLE before it must be")
        demand(tokens == sorted(tokens, reverse=True), "groups are not in order of weight")
        self._check_budget(groups)
        if self.model.setting.policy == "sliding":
            oldest = min(self.available, default=None)
            demand(oldest is None or oldest in emitted, "the oldest sample was passed over")
            return
        demand(active in (0, steps), "tumbling: a rank that has samples is IDLE")
        if len(self.offer.groups) >= steps:
            lengths = self.model.lengths
            offered = [[lengths[age_of(key)] for key in group] for group in self.offer.groups]
            weights = sorted(map(self._weight, offered), reverse=True)
            demand(tokens == weights[:steps], "the groups kept are not the heaviest")

    def _weight(self, group: Sequence[int]) -> float:
        """What groups of these lengths are ranked by: their cost if packed, else their tokens."""
        packed = self.model.setting.layout == "packed"
        return round(sum(map(COST.of, group)), 6) if packed else sum(group)

    def _check_fewest(self, groups: Sequence[Sequence[int]]) -> None:
        """Padded groups are the fewest; a packed one is closed only when nothing later fits."""
        if self.model.setting.layout == "packed":
            for at, group in enumerate(groups):
                later = [length for other in groups[at + 1 :] for length in other]
                demand(
                    not any(self._fits([*group, length]) for length in later),
                    f"{list(group)} is closed, but one of {later} fits",
                )
            return
        fewest = fewest_groups([n for group in groups for n in group], self.model.setting.budget)
        demand(len(groups) == fewest, f"{len(groups)} groups where {fewest} will do")

    def _check_budget(self, groups: Sequence[Sequence[int]]) -> None:
        for group in groups:
            lengths = [self.model.lengths[age] for age in group]
            demand(len(group) < 2 or self._fits(lengths), f"G6: {lengths} are too many tokens")

    def _fits(self, lengths: Sequence[int]) -> bool:
        budget = self.model.setting.budget
        if self.model.setting.layout == "padded":
            return len(lengths) * max(lengths) <= budget
        return sum(lengths) <= budget and sum(map(COST.of, lengths)) <= TARGET


@dataclass(kw_only=True)
class RankModel:
    """All that a rank with this share can become."""

    setting: Setting
    lengths: tuple[int, ...]
    nodes: dict[tuple[int, Ages], Node] = field(default_factory=dict)

    def capacity(self, policy: Policy, taken: int, held: int) -> int | None:
        """Most steps of a round after so many samples were taken, so many of which are held.

        By default it depends on steps and samples so far, but in worlds this small only on whether
        there were any.
        """
        emitted = taken - held
        return self.setting.capacity or policy.capacity(self.setting.window, emitted, emitted)

    def node(self, taken: int, held: Ages) -> Node:
        """The rank with these samples in its window."""
        key = (taken, held)
        if key not in self.nodes:
            self.nodes[key] = Node(self, taken, held)
        return self.nodes[key]

"""Ranks that run the protocol together, and what an epoch of theirs adds up to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost, cost_target
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.layouts import find_layout
from odb_nodes.batching.window import Window, age_of, make_key
from odb_nodes.protocol.policies import POLICIES
from odb_nodes.protocol.policy import Policy
from odb_nodes.protocol.reports import Facts
from odb_nodes.protocol.steps import plan_steps, step_order
from tools.data.workloads import Lengths, fewest_groups, fewest_rows, fewest_steps
from tools.simulate.rows import PACKERS

REPORT_BYTES = 72  # one exchange of Report.encode, a rank
TOTAL_BYTES = 40  # the totals of one step and its highest cost, per rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """How every rank is set up.

    Attributes:
        policy: "sliding" or "tumbling", or one of ``PACKERS``, which fill packed rows.
        layout: "padded" or "packed".
        slope: Cost of a document of L tokens is ``L + slope * L * L``.
        window: Samples buffered.
        budget: Tokens a group.
        capacity: Most steps a round, or None for the policy's default.
        join: Emit everything, or end as soon as a rank has nothing left.
    """

    policy: str = "sliding"
    layout: str = "padded"
    slope: float = 0.0
    window: int = 1024
    budget: int = 16384
    capacity: int | None = None
    join: bool = True

    def how(self) -> Layout:
        """The layout of that name and cost."""
        return find_layout(self.layout, cost=Cost(1.0, self.slope))


class Rank:
    """One rank: its share of the samples, its window, and what it emitted.

    Attributes:
        emitted: Per step the ages of the samples (their place in the share); empty is IDLE.
        num_emitted: Samples in it.
        arrived: Step at which each sample entered the window.
    """

    def __init__(self, lengths: Lengths | Sequence[int], setting: Setting) -> None:
        self.lengths = [int(length) for length in lengths]
        self.window = Window(TokenBudget(setting.budget), layout=setting.how())
        self.size = setting.window
        self.emitted: list[list[int]] = []
        self.num_emitted = 0
        self.arrived: list[int] = []

    def refill(self, window: Window) -> bool:
        """Top the window up; see ``Policy.propose``."""
        room = self.size - len(window)
        taken = len(self.arrived)
        for age in range(taken, min(taken + room, len(self.lengths))):
            window.add(make_key(self.lengths[age], age))
            self.arrived.append(len(self.emitted))
        return len(window) == self.size

    def last(self, steps: int) -> list[list[int]]:
        """Lengths in each of the last steps."""
        return (
            [[self.lengths[age] for age in ages] for ages in self.emitted[-steps:]] if steps else []
        )

    def waits(self) -> Iterator[int]:
        """Steps that each emitted sample spent in the window."""
        for step, ages in enumerate(self.emitted):
            yield from (step - self.arrived[age] for age in ages)


@dataclass(kw_only=True, slots=True)
class Result:
    """Sums over a simulated epoch.

    Attributes:
        steps: Steps of every rank.
        rounds: Rounds agreed, without the last one, which ends the epoch.
        idle: IDLE steps over all ranks.
        budget: Tokens a group.
        real_tokens: Tokens emitted.
        padded_tokens: What they take of the budget in their layout.
        cost: Of all groups, padding included.
        document_cost: Of all samples, each for itself.
        slowest_cost: Sum over steps of the cost of the rank that has most.
        fewest_steps: Minimum of steps for these samples, dealt out in any way; padded it is exact,
            packed no more than their tokens allow.
        busiest_steps: The same of the rank that needs most.
        ranks: The ranks, for whoever wants details.
    """

    budget: int
    steps: int = 0
    rounds: int = 0
    idle: int = 0
    real_tokens: int = 0
    padded_tokens: int = 0
    cost: int = 0
    document_cost: float = 0.0
    slowest_cost: int = 0
    fewest_steps: int = 0
    busiest_steps: int = 0
    ranks: list[Rank] = field(default_factory=list)

    @property
    def padding(self) -> float:
        """Share of the padded tokens that is padding."""
        return 1 - self.real_tokens / max(1, self.padded_tokens)

    @property
    def fill(self) -> float:
        """Real tokens over what all groups of all steps may hold."""
        return self.real_tokens / max(1, self.budget * self.steps * len(self.ranks))

    @property
    def bytes_a_rank(self) -> int:
        """Bytes that a rank puts into exchanges."""
        return REPORT_BYTES * (self.rounds + 1) + TOTAL_BYTES * self.steps

    @property
    def slowest_over_mean(self) -> float:
        """How much longer a step takes for its slowest rank than on average."""
        return self.slowest_cost * len(self.ranks) / max(1, self.cost)

    @property
    def time_over_ideal(self) -> float:
        """Modelled time over that of all samples without padding on ranks that never wait."""
        return self.slowest_cost * len(self.ranks) / max(1.0, self.document_cost)

    @property
    def longest_wait(self) -> int:
        """Most steps that a sample spent in a window."""
        return max((max(rank.waits(), default=0) for rank in self.ranks), default=0)

    @property
    def correlation(self) -> float:
        """Of a sample's length and its place among the samples that its rank emitted."""
        lengths = [r.lengths[age] for r in self.ranks for ages in r.emitted for age in ages]
        places = [place for r in self.ranks for place in range(r.num_emitted)]
        if len(set(lengths)) < 2 or len(set(places)) < 2:
            return 0.0
        return float(np.corrcoef(places, lengths)[0, 1])


def simulate(shares: Sequence[Lengths | Sequence[int]], setting: Setting) -> Result:
    """Run one epoch.

    Args:
        shares: Lengths in tokens of each rank's samples, in order of arrival.
        setting: Of all ranks.
    """
    ranks = [Rank(share, setting) for share in shares]
    result = Result(ranks=ranks, budget=setting.budget)
    if setting.layout == "packed":
        result.fewest_steps = fewest_rows(
            [int(sum(rank.lengths)) for rank in ranks], setting.budget
        )
        result.busiest_steps = max(-(-sum(rank.lengths) // setting.budget) for rank in ranks)
    else:
        result.fewest_steps = fewest_steps(shares, setting.budget)
        result.busiest_steps = max(fewest_groups(share, setting.budget) for share in shares)
    if setting.policy in PACKERS:
        _pack(result, setting)
    else:
        _run(result, POLICIES[setting.policy], setting)
    _add_up(result, setting)
    return result


def _run(result: Result, policy: Policy, setting: Setting) -> None:
    """Rounds, to the end of the epoch."""
    cost = tokens = 0
    layout = setting.how()
    while True:
        if setting.layout == "packed" and setting.slope:
            target = cost_target(cost, tokens, setting.budget)
            for rank in result.ranks:
                rank.window.aim(target)
        steps = _round(result.ranks, policy, setting, result.steps)
        if not steps:
            return
        result.rounds += 1
        result.steps += steps
        for rank in result.ranks:
            for lengths in rank.last(steps):
                cost += layout.group_cost(lengths)
                tokens += sum(lengths)


def _pack(result: Result, setting: Setting) -> None:
    """Every rank fills its rows for itself; those that have fewer are IDLE at the end."""
    for rank in result.ranks:
        rank.emitted = PACKERS[setting.policy](rank.lengths, setting.budget)
        rank.num_emitted, rank.arrived = len(rank.lengths), [0] * len(rank.lengths)
    result.steps = max(len(rank.emitted) for rank in result.ranks)
    for rank in result.ranks:
        rank.emitted += [[] for _ in range(result.steps - len(rank.emitted))]


def _round(ranks: list[Rank], policy: Policy, setting: Setting, done: int) -> int:
    """One round on all ranks. Returns its steps; 0 ends the epoch."""
    emitted = sum(rank.num_emitted for rank in ranks) / len(ranks)
    capacity = setting.capacity or policy.capacity(setting.window, done, emitted)
    offers = [policy.propose(rank.window, rank.refill, capacity) for rank in ranks]
    reports = [offer.report.encode(rank, 0) for rank, offer in enumerate(offers)]
    facts = Facts.decode([max(column) for column in zip(*reports, strict=True)])
    steps = plan_steps(facts, policy, join=setting.join)
    order = step_order(steps, 0, done)
    for rank, offer in zip(ranks, offers, strict=True):
        groups = offer.settle(rank.window, steps) if steps else []
        rank.emitted += [[age_of(key) for key in groups[slot]] for slot in order]
        rank.num_emitted += sum(map(len, groups))
    return steps


def _add_up(result: Result, setting: Setting) -> None:
    layout, budget = setting.how(), TokenBudget(setting.budget)
    slowest = np.zeros(result.steps, np.int64)
    for rank in result.ranks:
        groups = rank.last(result.steps)
        costs = np.array([layout.group_cost(lengths) for lengths in groups], np.int64)
        result.real_tokens += sum(map(sum, groups))
        result.padded_tokens += sum(layout.size(lengths, budget) for lengths in groups)
        result.cost += int(costs.sum())
        result.document_cost += sum(map(layout.cost.of, (n for group in groups for n in group)))
        result.idle += sum(not group for group in groups)
        slowest = np.maximum(slowest, costs)
    result.slowest_cost = int(slowest.sum())


def deal(lengths: Lengths, ranks: int) -> list[Lengths]:
    """The share of each rank: samples r, r + ranks, r + 2 * ranks, ..."""
    return [lengths[rank::ranks] for rank in range(ranks)]

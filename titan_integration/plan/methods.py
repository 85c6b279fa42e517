"""Ways to batch an epoch: each gives, for every step, the lengths in the group of every rank."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.layouts import find_layout
from odb_nodes.batching.window import Window, length_of, make_key
from odb_nodes.protocol.policies import POLICIES
from odb_nodes.protocol.reports import Facts
from odb_nodes.protocol.steps import plan_steps, step_order
from titan_integration.plan.epoch import Group

Lengths = npt.NDArray[np.int64]
Steps = Iterator[Sequence[Group]]
MEGABATCH = 50  # batches that Hugging Face's group_by_length sorts at a time


def fixed(lengths: Lengths, ranks: int, *, batch_size: int) -> Steps:
    """A fixed number of samples per rank and step, in order of arrival."""
    for start in range(0, len(lengths), batch_size * ranks):
        step = lengths[start : start + batch_size * ranks]
        yield [step[rank::ranks].tolist() for rank in range(ranks)]


def length_sorted(lengths: Lengths, ranks: int, *, batch_size: int, seed: int = 0) -> Steps:
    """The same, each megabatch sorted by length first, and its steps in random order.

    Source: ``group_by_length`` of Hugging Face's Trainer, as its documentation describes it.
    """
    size, rng = batch_size * ranks, np.random.default_rng(seed)
    for start in range(0, len(lengths), size * MEGABATCH):
        part = np.sort(lengths[start : start + size * MEGABATCH])[::-1]
        cuts = [part[i : i + size] for i in range(0, len(part), size)]
        for at in rng.permutation(len(cuts)):
            yield [cuts[at][rank::ranks].tolist() for rank in range(ranks)]


def greedy_packed(lengths: Lengths, ranks: int, *, budget: int) -> Steps:
    """Rows of ``budget`` tokens filled in order of arrival; the first misfit closes a row."""
    rows = [_next_fit(lengths[rank::ranks].tolist(), budget) for rank in range(ranks)]
    for step in range(max(map(len, rows))):
        yield [own[step] if step < len(own) else () for own in rows]


def _next_fit(lengths: list[int], budget: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room = -1
    for length in lengths:
        if length > room:
            rows.append([])
            room = budget
        rows[-1].append(length)
        room -= length
    return rows


def online(
    lengths: Lengths,
    ranks: int,
    *,
    budget: int,
    window: int,
    layout: str = "padded",
    policy: str = "sliding",
) -> Steps:
    """What this project does: the real windows, policy and alignment, without a network."""
    worlds = [_Rank(lengths[rank::ranks].tolist(), budget, window, layout) for rank in range(ranks)]
    rule, done, emitted = POLICIES[policy], 0, 0
    while True:
        capacity = rule.capacity(window, done, emitted / ranks)
        offers = [rule.propose(rank.window, rank.refill, capacity) for rank in worlds]
        reports = [offer.report.encode(rank, 0) for rank, offer in enumerate(offers)]
        facts = Facts.decode([max(column) for column in zip(*reports, strict=True)])
        steps = plan_steps(facts, rule, join=True)
        if not steps:
            return
        groups = [o.settle(r.window, steps) for r, o in zip(worlds, offers, strict=True)]
        for slot in step_order(steps, 0, done):
            yield [[length_of(key) for key in own[slot]] for own in groups]
        done += steps
        emitted += sum(len(group) for own in groups for group in own)


class _Rank:
    """One rank's window over its share of the lengths."""

    def __init__(self, lengths: list[int], budget: int, size: int, layout: str) -> None:
        self.window = Window(TokenBudget(budget), layout=find_layout(layout))
        self._lengths, self._size, self._taken = lengths, size, 0

    def refill(self, window: Window) -> bool:
        """Top the window up; see ``Policy.propose``."""
        room = max(0, self._size - len(window))  # what was put back may have filled it
        start, self._taken = self._taken, min(self._taken + room, len(self._lengths))
        for age in range(start, self._taken):
            window.add(make_key(self._lengths[age], age))
        return len(window) == self._size

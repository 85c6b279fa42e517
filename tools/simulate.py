"""Simulate the alignment protocol on many ranks: the real pure functions, no tensors, no network.

Prints a Markdown table: steps against the fewest possible, padding, waiting, rounds and bytes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.window import Window, age_of, make_key
from odb_nodes.protocol.policies import POLICIES
from odb_nodes.protocol.policy import Policy
from odb_nodes.protocol.reports import Facts
from odb_nodes.protocol.steps import plan_steps, step_order
from tools.data.workloads import WORKLOADS, Lengths, fewest_groups, fewest_steps

REPORT_BYTES = 72  # one exchange of Report.encode, a rank
TOTAL_BYTES = 24  # the totals of one step, a rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """How every rank is set up.

    Attributes:
        policy: "sliding" or "tumbling".
        window: Samples buffered.
        budget: Padded tokens a group.
        capacity: Most steps a round, or None for the policy's default.
        join: Emit everything, or end as soon as a rank has nothing left.
    """

    policy: str = "sliding"
    window: int = 1024
    budget: int = 16384
    capacity: int | None = None
    join: bool = True


class Rank:
    """One rank: its share of the samples, its window, and what it emitted.

    Attributes:
        emitted: Per step the ages of the samples (their place in the share); empty is IDLE.
        num_emitted: Samples in it.
        arrived: Step at which each sample entered the window.
    """

    def __init__(self, lengths: Lengths | Sequence[int], setting: Setting) -> None:
        self.lengths = [int(length) for length in lengths]
        self.window = Window(TokenBudget(setting.budget))
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
        real_tokens: Tokens emitted.
        padded_tokens: The same with padding.
        slowest_tokens: Sum over steps of the padded tokens of the rank that has most.
        fewest_steps: Exact minimum of steps for these samples, dealt out in any way.
        busiest_steps: Exact minimum of groups of the rank that needs most.
        ranks: The ranks, for whoever wants details.
    """

    steps: int = 0
    rounds: int = 0
    idle: int = 0
    real_tokens: int = 0
    padded_tokens: int = 0
    slowest_tokens: int = 0
    fewest_steps: int = 0
    busiest_steps: int = 0
    ranks: list[Rank] = field(default_factory=list)

    @property
    def padding(self) -> float:
        """Share of the padded tokens that is padding."""
        return 1 - self.real_tokens / max(1, self.padded_tokens)

    @property
    def bytes_a_rank(self) -> int:
        """Bytes that a rank puts into exchanges."""
        return REPORT_BYTES * (self.rounds + 1) + TOTAL_BYTES * self.steps

    @property
    def slowest_over_mean(self) -> float:
        """How much longer a step takes for its slowest rank than on average."""
        return self.slowest_tokens * len(self.ranks) / max(1, self.padded_tokens)


def simulate(shares: Sequence[Lengths | Sequence[int]], setting: Setting) -> Result:
    """Run one epoch.

    Args:
        shares: Lengths in tokens of each rank's samples, in order of arrival.
        setting: Of all ranks.
    """
    policy = POLICIES[setting.policy]
    ranks = [Rank(share, setting) for share in shares]
    result = Result(ranks=ranks)
    result.fewest_steps = fewest_steps(shares, setting.budget)
    result.busiest_steps = max(fewest_groups(share, setting.budget) for share in shares)
    while steps := _round(ranks, policy, setting, result.steps):
        result.rounds += 1
        result.steps += steps
    _add_up(result)
    return result


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


def _add_up(result: Result) -> None:
    slowest = np.zeros(result.steps, np.int64)
    for rank in result.ranks:
        rows = [[rank.lengths[age] for age in ages] for ages in rank.emitted]
        padded = np.array([len(row) * max(row, default=0) for row in rows], np.int64)
        result.real_tokens += sum(map(sum, rows))
        result.padded_tokens += int(padded.sum())
        result.idle += sum(not row for row in rows)
        slowest = np.maximum(slowest, padded)
    result.slowest_tokens = int(slowest.sum())


def deal(lengths: Lengths, ranks: int) -> list[Lengths]:
    """The share of each rank: samples r, r + ranks, r + 2 * ranks, ..."""
    return [lengths[rank::ranks] for rank in range(ranks)]


HEADER = (
    "workload",
    "ranks",
    "samples",
    "window",
    "policy",
    "steps / minimum",
    "steps / busiest rank",
    "padding %",
    "slowest / mean",
    "idle %",
    "rounds",
    "bytes a rank and step",
)


def row(name: str, samples: int, setting: Setting, result: Result) -> list[str]:
    """One line of the table."""
    ranks = len(result.ranks)
    return [
        name,
        str(ranks),
        str(samples),
        str(setting.window),
        setting.policy,
        f"{result.steps / result.fewest_steps:.3f}",
        f"{result.steps / result.busiest_steps:.3f}",
        f"{100 * result.padding:.1f}",
        f"{result.slowest_over_mean:.3f}",
        f"{100 * result.idle / max(1, ranks * result.steps):.1f}",
        str(result.rounds),
        f"{result.bytes_a_rank / max(1, result.steps):.0f}",
    ]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, its columns aligned."""
    lines = [list(HEADER), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    lines.insert(1, ["-" * width for width in widths])
    cells = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def parser() -> argparse.ArgumentParser:
    """Options; every list is combined with every other."""
    out = argparse.ArgumentParser(
        prog="python -m tools.simulate",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = out.add_argument
    add("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    add("--ranks", nargs="+", type=int, default=[1, 4, 64], help="2 to 4096 are sensible")
    add("--samples", type=int, help="samples of all ranks; default 4096, or 1000 a rank if more")
    add("--windows", nargs="+", type=int, default=[256, 1024], help="samples buffered a rank")
    add("--policies", nargs="+", choices=list(POLICIES), default=["tumbling", "sliding"])
    add("--budget", type=int, default=16384, help="padded tokens a group")
    add("--capacity", type=int, help="most steps a round; default by policy")
    add("--seed", type=int, default=0, help="of the lengths")
    add("--out", default="-", help="file for the table, - for standard output")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(argv)
    if min([*args.ranks, *args.windows, args.budget, args.samples or 1]) < 1:
        parser().error("ranks, windows, budget and samples must be at least 1")
    cases = [
        (name, ranks, window, policy)
        for name in args.workloads
        for ranks in args.ranks
        for window in args.windows
        for policy in args.policies
    ]
    rows = []
    for name, ranks, window, policy in tqdm(cases, disable=not sys.stderr.isatty()):
        samples = args.samples or max(4096, 1000 * ranks)
        setting = Setting(policy=policy, window=window, budget=args.budget, capacity=args.capacity)
        shares = deal(WORKLOADS[name].draw(samples, args.seed), ranks)
        rows.append(row(name, samples, setting, simulate(shares, setting)))
    if args.out == "-":
        sys.stdout.write(markdown(rows))
    else:
        with open(args.out, "w", encoding="ascii") as file:
            file.write(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

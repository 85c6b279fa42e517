"""Small worlds of ranks, run through every round of the protocol, with the guarantees checked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

from odb_nodes.batching.layouts import LAYOUTS
from odb_nodes.protocol import steps as protocol_steps
from odb_nodes.protocol.policies import POLICIES
from tools.verify.rank import Move, Node, RankModel, Row, Setting, ViolationError, demand

Share = tuple[int, ...]
MODES = (True, False)  # join, closure


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """One run: settings, mode, and the lengths of every rank's samples."""

    setting: Setting
    join: bool
    quota: int | None
    shares: tuple[Share, ...]

    def __str__(self) -> str:
        setting, mode = self.setting, "join" if self.join else "closure"
        quota = "" if self.quota is None else f", quota {self.quota}"
        return (
            f"policy {setting.policy}, {setting.layout}, {mode}{quota}, budget {setting.budget}, "
            f"window {setting.window}, capacity {setting.capacity}, lengths by rank {self.shares}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Which worlds to look at.

    Attributes:
        most_samples: By number of ranks, the largest share.
        most_with_quota: The same for worlds with a quota, which are many more.
        lengths: Lengths a sample may have.
        budgets: Padded tokens a group.
        windows: Samples buffered.
        capacities: Most steps a round; None is the policy's default.
        policies: Names of policies.
        layouts: Names of layouts.
    """

    most_samples: dict[int, int]
    most_with_quota: dict[int, int]
    # 2 is short, 3 half of a budget of 6 but more than half of 5, and 7 is over both. A budget that
    # is off by one either way changes how many of them fit.
    lengths: tuple[int, ...] = (2, 3, 7)
    budgets: tuple[int, ...] = (5, 6)
    windows: tuple[int, ...] = (1, 2, 3)
    capacities: tuple[int | None, ...] = (1, 2, 3, None)
    policies: tuple[str, ...] = tuple(POLICIES)
    layouts: tuple[str, ...] = tuple(LAYOUTS)

    def settings(self) -> list[Setting]:
        """All combinations of settings."""
        return [
            Setting(policy=policy, layout=layout, budget=budget, window=window, capacity=capacity)
            for policy, layout, budget, window, capacity in product(
                self.policies, self.layouts, self.budgets, self.windows, self.capacities
            )
        ]

    def shares(self) -> list[tuple[Share, ...]]:
        """The shares of all ranks, the smallest worlds first.

        Ranks are interchangeable: a rank's number is in its report only when it failed or stops,
        which ``Node`` checks, and the merge of reports is symmetric. So one order of each
        combination of shares stands for all.
        """
        found: list[tuple[Share, ...]] = []
        for ranks, most in self.most_samples.items():
            each = [s for n in range(most + 1) for s in product(self.lengths, repeat=n)]
            found += combinations_with_replacement(each, ranks)
        return sorted(found, key=lambda shares: sum(map(len, shares)))

    def modes(self, shares: Sequence[Share]) -> Iterator[tuple[bool, int | None]]:
        """Join and quota of the worlds with these shares: up to three passes and a bit."""
        total = sum(map(len, shares))
        quotas: list[int | None] = [None]
        if max(map(len, shares)) <= self.most_with_quota.get(len(shares), -1):
            quotas += sorted({1, total // 2 + 1, max(1, total), total + 1, 2 * total + 1})
        yield from product(MODES, quotas)


class Runner:
    """Runs worlds; remembers what ranks and pure functions did in the worlds before."""

    def __init__(self) -> None:
        self._models: dict[tuple[Setting, Share], RankModel] = {}
        self._orders: dict[tuple[int, int, int], list[int]] = {}
        self._cuts: dict[tuple[tuple[int, ...], int], int] = {}

    def run(self, world: World, tell: Callable[[str], None] | None = None) -> int:
        """Run a world to its end.

        Args:
            world: What to run.
            tell: Gets a line a round.
        Returns:
            States seen: the start, and the world after each round.
        Raises:
            ViolationError: A guarantee does not hold.
        """
        start = [self._model(world.setting, share).node(0, ()) for share in world.shares]
        states, epoch, done = 1, 0, 0
        while True:
            before = done
            for counts in self._pass(world, start, epoch, tell):
                states += 1
                if world.quota is None:
                    done += sum(counts)
                    continue
                done, ended = self._count(counts, done, world.quota)
                if ended:
                    return states
            if world.join:
                demand(done - before == sum(map(len, world.shares)), "G4: samples were not emitted")
            if world.quota is None or done == before:
                return states
            epoch += 1

    def _pass(
        self, world: World, nodes: Sequence[Node], epoch: int, tell: Callable[[str], None] | None
    ) -> Iterator[tuple[int, ...]]:
        """One pass; yields the samples of each step of a round, all ranks together."""
        rounds, steps_done, most = 0, 0, max(map(len, world.shares))
        while steps := _agree(nodes, world.join, tell):
            rounds += 1
            demand(rounds <= most, f"G3: round {rounds}, but no rank has over {most} samples")
            moves = [node.move(steps) for node in nodes]
            if tell is not None:
                tell(f"  epoch {epoch}, round {rounds}: {[move.groups for move in moves]}")
            _check_round(moves, steps, world.join)
            nodes = [move.after for move in moves]
            if world.quota is None:
                yield tuple(map(sum, zip(*(move.sizes for move in moves), strict=True)))
            else:
                order = self._order(steps, epoch, steps_done)
                demand(sorted(order) == list(range(steps)), "the order of steps lacks some")
                yield tuple(sum(move.sizes[slot] for move in moves) for slot in order)
            steps_done += steps
        _check_end(nodes, world.join)

    def _count(self, counts: tuple[int, ...], done: int, quota: int) -> tuple[int, bool]:
        """Add a round's steps until the quota; returns the count and whether it ended there."""
        key = (counts, quota - done)
        if key not in self._cuts:
            self._cuts[key] = protocol_steps.steps_to_quota(*key)
        kept = self._cuts[key]
        demand(0 < kept <= len(counts), f"G5: {kept} of {len(counts)} steps kept")
        demand(done + sum(counts[: kept - 1]) < quota, "G5: goes on after the quota is reached")
        done += sum(counts[:kept])
        demand(kept == len(counts) or done >= quota, "G5: ends before the quota is reached")
        return done, done >= quota

    def _order(self, *key: int) -> list[int]:
        if key not in self._orders:
            self._orders[key] = protocol_steps.step_order(*key)  # type: ignore[index]
        return self._orders[key]  # type: ignore[index]

    def _model(self, setting: Setting, share: Share) -> RankModel:
        key = (setting, share)
        if key not in self._models:
            self._models[key] = RankModel(setting=setting, lengths=share)
        return self._models[key]


def _agree(nodes: Sequence[Node], join: bool, tell: Callable[[str], None] | None) -> int:
    """The exchange. What follows it is decided by T alone, so equal T is an equal sequence."""
    maxima: Row = tuple(map(max, *(node.row for node in nodes)))
    targets = [node.target(maxima, join) for node in nodes]
    if tell is not None:
        tell(f"  reports {[node.row for node in nodes]}, T by rank {targets}")
    demand(min(targets) == max(targets), f"G2: the ranks go on with {targets} steps")
    demand(targets[0] >= 0, "T is negative")
    return targets[0]


def _check_round(moves: Sequence[Move], steps: int, join: bool) -> None:
    active = [move.active for move in moves]
    demand(max(active) == steps, "a step is IDLE on all ranks")
    demand(join or min(active) == steps, "G5: an IDLE step in a closure")


def _check_end(nodes: Sequence[Node], join: bool) -> None:
    samples = [len(node.available) for node in nodes]
    if join:
        demand(max(samples) == 0, f"G4: the pass ends with {samples} samples held by rank")
        demand(all(node.exhausted for node in nodes), "G4: the pass ends with views left")
    else:
        demand(min(samples) == 0, f"G5: the pass ends, but every rank has samples: {samples}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an exploration found: states seen, and the smallest world that breaks a guarantee."""

    states: int
    worlds: int
    violation: str | None = None
    size: int = 0


def explore(
    scope: Scope, settings: Sequence[Setting], progress: Callable[[int, int], None] | None = None
) -> Outcome:
    """Run every world of a scope with these settings, small ones first, up to a violation.

    Args:
        scope: Shares and modes.
        settings: Those of ``scope.settings()`` to look at.
        progress: Gets worlds and states since the last call, now and then.
    """
    runner, states, worlds, told = Runner(), 0, 0, (0, 0)
    for shares in scope.shares():
        for setting in settings:
            for join, quota in scope.modes(shares):
                world = World(setting=setting, join=join, quota=quota, shares=shares)
                try:
                    states += runner.run(world)
                except Exception as error:  # an error of the functions is a finding as well
                    size = sum(map(len, shares))
                    return Outcome(
                        states=states, worlds=worlds, violation=_story(world, error), size=size
                    )
                worlds += 1
        if progress is not None and worlds - told[0] >= 2000:
            progress(worlds - told[0], states - told[1])
            told = (worlds, states)
    return Outcome(states=states, worlds=worlds)


def _story(world: World, error: Exception) -> str:
    """The world, round by round, up to what went wrong."""
    lines = [str(world)]
    try:
        Runner().run(world, lines.append)
    except Exception as again:
        error = again
    kind = "" if isinstance(error, ViolationError) else f"{type(error).__name__}: "
    return "\n".join([*lines, f"  -> {kind}{error}"])

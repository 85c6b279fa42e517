"""The model checker passes the protocol as it is, and finds each rule that is broken on purpose."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odb_nodes.batching import packed
from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.ordered import OrderedKeys
from odb_nodes.batching.window import Window
from odb_nodes.protocol import proposal, steps
from odb_nodes.protocol.policy import Policy
from odb_nodes.protocol.proposal import Proposal
from odb_nodes.protocol.reports import Facts, Report
from odb_nodes.protocol.sliding import SlidingPolicy
from odb_nodes.protocol.tumbling import TumblingPolicy
from tools.verify.world import Scope, explore

ROOT = Path(__file__).parents[2]
SMALL = Scope(
    most_samples={2: 3, 3: 1}, most_with_quota={2: 2}, windows=(1, 3), capacities=(1, 2, None)
)
Patch = pytest.MonkeyPatch


def find(
    policies: tuple[str, ...] = ("tumbling", "sliding"),
    layouts: tuple[str, ...] = ("padded", "packed"),
) -> str | None:
    scope = replace(SMALL, policies=policies, layouts=layouts)
    return explore(scope, scope.settings()).violation


@pytest.mark.slow
def test_the_protocol_passes_in_the_scope_in_which_the_mutants_fail() -> None:
    outcome = explore(SMALL, SMALL.settings())
    assert outcome.violation is None
    assert outcome.states > 20_000


def test_steps_without_the_sample_bound_are_found(monkeypatch: Patch) -> None:
    def target(self: TumblingPolicy, facts: Facts) -> int:
        return max(1, min(facts.max_groups, facts.min_capacity))

    monkeypatch.setattr(TumblingPolicy, "target", target)
    violation = find(("tumbling",))
    assert violation is not None
    assert "IDLE" in violation


@pytest.mark.slow
def test_a_split_that_loses_a_sample_is_found(monkeypatch: Patch) -> None:
    real = proposal.split

    def split(groups: Sequence[list[int]], steps: int) -> list[list[int]]:
        out = real(groups, steps)
        return [*out[:-1], out[-1][:-1]] if len(out) > len(groups) else out

    monkeypatch.setattr(proposal, "split", split)
    violation = find()
    assert violation is not None
    assert "G4" in violation


@pytest.mark.slow
def test_a_split_that_repeats_a_sample_is_found(monkeypatch: Patch) -> None:
    real = proposal.split

    def split(groups: Sequence[list[int]], steps: int) -> list[list[int]]:
        out = real(groups, steps)
        return [*out[:-1], out[0][:1]] if len(out) > len(groups) else out

    monkeypatch.setattr(proposal, "split", split)
    violation = find()
    assert violation is not None
    assert "G4" in violation


def test_keeping_the_smallest_groups_is_found(monkeypatch: Patch) -> None:
    real = TumblingPolicy.propose

    def propose(
        self: TumblingPolicy, window: Window, refill: Any, capacity: int | None
    ) -> Proposal:
        offer = real(self, window, refill, capacity)
        return replace(offer, groups=offer.groups[::-1])

    monkeypatch.setattr(TumblingPolicy, "propose", propose)
    violation = find(("tumbling",))
    assert violation is not None
    assert "heaviest" in violation


def test_missing_idle_steps_are_found(monkeypatch: Patch) -> None:
    real = Proposal.settle

    def settle(self: Proposal, window: Window, steps: int) -> list[list[int]]:
        return [group for group in real(self, window, steps) if group]

    monkeypatch.setattr(Proposal, "settle", settle)
    violation = find()
    assert violation is not None
    assert "G1" in violation


def decide_by_own_window(patch: Patch, decide: Callable[[int, int], int]) -> None:
    """Let T depend on how many samples a rank holds: ``decide(T, samples)``."""

    def spied(policy: type[Policy]) -> None:
        real_propose, real_target = policy.propose, policy.target

        def propose(self: Any, window: Window, refill: Any, capacity: int | None) -> Proposal:
            offer = real_propose(self, window, refill, capacity)
            self.own_samples = offer.report.samples
            return offer

        def target(self: Any, facts: Facts) -> int:
            return decide(real_target(self, facts), self.own_samples)

        patch.setattr(policy, "propose", propose)
        patch.setattr(policy, "target", target)

    spied(TumblingPolicy)
    spied(SlidingPolicy)


def test_a_policy_that_switches_on_local_data_is_found(monkeypatch: Patch) -> None:
    decide_by_own_window(monkeypatch, lambda steps, own: 1 if own < 2 else steps)
    violation = find()
    assert violation is not None
    assert "G2" in violation


def test_a_closure_that_only_the_empty_rank_notices_is_found(monkeypatch: Patch) -> None:
    real = steps.plan_steps

    def plan_steps(facts: Facts, policy: Any, *, join: bool) -> int:
        if not join and facts.any_empty and policy.own_samples > 0:
            facts = replace(facts, any_empty=False)
        return real(facts, policy, join=join)

    decide_by_own_window(monkeypatch, lambda steps, own: steps)
    monkeypatch.setattr(steps, "plan_steps", plan_steps)
    violation = find()
    assert violation is not None
    assert "G2" in violation


def test_a_closure_that_goes_on_with_idle_steps_is_found(monkeypatch: Patch) -> None:
    real = steps.plan_steps

    def plan_steps(facts: Facts, policy: Policy, *, join: bool) -> int:
        return real(facts, policy, join=True)

    monkeypatch.setattr(steps, "plan_steps", plan_steps)
    violation = find()
    assert violation is not None
    assert "G5" in violation


@pytest.mark.parametrize("error", [1, -1])
def test_a_budget_that_is_off_by_one_is_found(monkeypatch: Patch, error: int) -> None:
    def most(self: TokenBudget, length: int) -> int:
        return max(1, (self.max_tokens + error) // length)

    monkeypatch.setattr(TokenBudget, "most", most)
    violation = find(("tumbling",))
    assert violation is not None
    assert ("G6" if error > 0 else "will do") in violation


def test_a_best_fill_that_is_off_by_one_is_found(monkeypatch: Patch) -> None:
    real = Window.take_best

    def take_best(self: Window) -> list[int]:
        budget = self._limits.budget
        self._limits.budget = TokenBudget(budget.max_tokens + 1)
        taken = real(self)
        self._limits.budget = budget
        return taken

    monkeypatch.setattr(Window, "take_best", take_best)
    for layout in ("padded", "packed"):
        violation = find(("sliding",), (layout,))
        assert violation is not None
        assert "G6" in violation


def test_packed_rows_that_pass_the_cost_target_are_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Cost, "longest", lambda self, room: int(room))
    violation = find(layouts=("packed",))
    assert violation is not None
    assert "G6" in violation


def test_packed_rows_that_close_too_early_are_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(OrderedKeys, "pop_largest", lambda *_: None)
    monkeypatch.setattr(packed, "_BEST_FIT_PART", 0.6)
    violation = find(layouts=("packed",))
    assert violation is not None
    assert "fits" in violation


def test_a_quota_that_counts_one_step_too_many_is_found(monkeypatch: Patch) -> None:
    real = steps.steps_to_quota
    monkeypatch.setattr(
        steps,
        "steps_to_quota",
        lambda counts, missing: min(len(counts), real(counts, missing) + 1),
    )
    violation = find()
    assert violation is not None
    assert "G5" in violation


def test_a_report_that_hides_the_empty_rank_is_found(monkeypatch: Patch) -> None:
    real = Report.encode

    def encode(self: Report, rank: int, agreement: int) -> list[int]:
        row = real(self, rank, agreement)
        row[6] = 0
        return row

    monkeypatch.setattr(Report, "encode", encode)
    assert find() is not None


def test_a_window_that_loses_its_oldest_first_order_is_found(monkeypatch: Patch) -> None:
    real = OrderedKeys.oldest_first
    monkeypatch.setattr(OrderedKeys, "oldest_first", lambda self: reversed(list(real(self))))
    for layout in ("padded", "packed"):
        violation = find(("sliding",), (layout,))
        assert violation is not None


def test_a_counterexample_is_the_smallest_and_tells_the_story(monkeypatch: Patch) -> None:
    monkeypatch.setattr(TokenBudget, "most", lambda self, length: 3)
    outcome = explore(SMALL, SMALL.settings())
    assert outcome.size == 2
    assert outcome.violation is not None
    first, *_, last = outcome.violation.splitlines()
    assert "lengths by rank" in first
    assert "G6" in last


@pytest.mark.slow
def test_the_quick_check_passes_and_sees_a_hundred_thousand_states() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.verify"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.endswith(" violations=0")
    assert int(last.split()[0].removeprefix("states=")) >= 100_000

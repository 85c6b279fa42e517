"""How many steps a round has, and in which order they are emitted. The same on every rank."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odb_nodes.protocol.policy import Policy
from odb_nodes.protocol.reports import Facts
from odb_nodes.state.permutation import key64, mix64


def plan_steps(facts: Facts, policy: Policy, *, join: bool) -> int:
    """Steps of this round, or 0 if the pass ends here; the same on every rank.

    Joined, a pass ends when no rank has a sample left. Otherwise it ends as soon as some rank has
    none, and no round is longer than the smallest rank can fill, so that no step is ever IDLE.
    """
    if facts.max_groups == 0 or (not join and facts.any_empty):
        return 0
    steps = policy.target(facts)
    return steps if join else min(steps, facts.min_samples)


def steps_to_quota(counts: Sequence[int] | npt.NDArray[np.int64], missing: int) -> int:
    """How many steps of a round to keep: up to the first that reaches a quota, else all.

    Args:
        counts: Samples of each step over all ranks, in the order of emission, ``[T]``.
        missing: Samples that the quota still lacks, at least 1.
    """
    return min(int(np.searchsorted(np.cumsum(counts), missing)) + 1, len(counts))


def step_order(steps: int, *parts: int) -> list[int]:
    """A permutation of ``range(steps)`` drawn from integers that all ranks share.

    Each rank sorts its groups by weight first, so that heavy meets heavy across ranks; this order
    then keeps steps from being sorted by length in time.
    """
    noise = mix64(np.arange(steps, dtype=np.uint64) + np.uint64(key64(*parts)))
    return [int(i) for i in np.argsort(noise, kind="stable")]

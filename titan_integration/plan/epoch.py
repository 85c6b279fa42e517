"""An epoch that was batched in some way: its steps, padding, and what it costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from odb_nodes.batching.cost import Cost

Group = Sequence[int]  # lengths in tokens of the samples of one rank and step; empty is IDLE


def cost_of_model(dim: int) -> Cost:
    """What a sample costs a decoder of width ``dim``: ``L + L * L / (12 * dim)`` tokens.

    Per token and layer, the matrices take about ``12 * dim * dim`` multiplications, and causal
    attention takes ``L * dim``.
    """
    return Cost(per_pair=1 / (12 * dim))


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What one way to batch makes of an epoch.

    Attributes:
        method: Name of the way.
        budget: Most tokens per rank and step.
        window: Samples buffered per rank; 0 where there is no window.
        steps: Steps of every rank.
        samples: Samples, all ranks.
        real_tokens: Tokens, all ranks.
        batch_tokens: The same with padding.
        work: Sum over steps of the cost of the rank that has most: the others wait for it.
        ideal_work: Cost of all samples without padding, dealt out evenly.
    """

    method: str
    budget: int
    window: int = 0
    steps: int
    samples: int
    real_tokens: int
    batch_tokens: int
    work: float
    ideal_work: float

    @property
    def padding(self) -> float:
        """Part of the tokens that is padding."""
        return 1 - self.real_tokens / self.batch_tokens if self.batch_tokens else 0.0

    @property
    def efficiency(self) -> float:
        """Useful part of the work, 1 at best: lost are padding and waiting for the slowest."""
        return self.ideal_work / self.work if self.work else 0.0


def measure(
    method: str,
    steps: Iterable[Sequence[Group]],
    *,
    budget: int,
    cost: Cost,
    window: int = 0,
    packed: bool = False,
    least: int = 0,
) -> Epoch:
    """Add an epoch up.

    Args:
        method: Its name.
        steps: Of every step, the group of every rank.
        budget: Tokens per rank and step.
        cost: Of groups.
        window: Samples buffered per rank.
        packed: Groups are one row each, in which every sample attends to itself; else they are
            padded to their longest sample.
        least: Tokens of a packed row at least; padding makes up what its samples leave.
    """
    num_steps = samples = real = tokens = 0
    work = ideal = 0.0
    for groups in steps:
        num_steps += 1
        ranks = max(1, len(groups))
        samples += sum(map(len, groups))
        real += sum(map(sum, groups))
        costs = [sum(map(cost.of, group)) for group in groups]
        ideal += sum(costs) / ranks
        if packed:
            tokens += sum(max(least, sum(group)) for group in groups)
        else:
            tokens += sum(len(group) * max(group, default=0) for group in groups)
            costs = [len(group) * cost.of(max(group, default=0)) for group in groups]
        work += max(costs)
    return Epoch(
        method=method,
        budget=budget,
        window=window,
        steps=num_steps,
        samples=samples,
        real_tokens=real,
        batch_tokens=tokens,
        work=work,
        ideal_work=ideal,
    )

"""An epoch that was batched in some way: its steps, padding, and what it costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Group = Sequence[int]  # lengths in tokens of the samples of one rank and step; empty is IDLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Work of a step in units of tokens: linear layers by token, attention by pair of tokens.

    A row of ``L`` tokens costs ``L + L * L / (12 * dim)``: per token, a decoder's linear layers
    take about ``12 * dim * dim`` multiplications per layer and causal attention ``L * dim``.

    Attributes:
        dim: Width of the model.
    """

    dim: int = 4096

    def padded(self, group: Group) -> float:
        """Of rows padded to the longest."""
        return len(group) * self._row(max(group, default=0))

    def packed(self, group: Group) -> float:
        """Of one row in which every sample attends to itself."""
        return sum(map(self._row, group))

    def _row(self, length: int) -> float:
        return length + length * length / (12 * self.dim)


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
) -> Epoch:
    """Add an epoch up.

    Args:
        method: Its name.
        steps: Of every step, the group of every rank.
        budget: Tokens per rank and step.
        cost: Of groups.
        window: Samples buffered per rank.
        packed: Groups are packed into a row of ``budget`` tokens, or more for a longer sample;
            else padded to their longest sample.
    """
    num_steps = samples = real = tokens = 0
    work = ideal = 0.0
    for groups in steps:
        num_steps += 1
        ranks = max(1, len(groups))
        samples += sum(map(len, groups))
        real += sum(map(sum, groups))
        tokens += sum(max(budget, sum(g)) if packed else len(g) * max(g, default=0) for g in groups)
        work += max(map(cost.packed if packed else cost.padded, groups), default=0.0)
        ideal += sum(map(cost.packed, groups)) / ranks
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

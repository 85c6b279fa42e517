"""How even and how full the steps of a rank are."""

from dataclasses import dataclass

from odb_nodes.types import StepInfo


@dataclass(slots=True)
class Load:
    """Sums over the steps of this rank since the process started.

    Attributes:
        steps: Steps.
        fill: Of ``StepInfo.fill``.
        cost: Of all ranks' cost.
        slowest: The same, had every rank had as much as the one that had most.
    """

    steps: int = 0
    fill: float = 0.0
    cost: float = 0.0
    slowest: float = 0.0

    def add(self, info: StepInfo) -> None:
        """Count one step."""
        self.steps += 1
        self.fill += info.fill
        self.cost += info.total_cost
        self.slowest += info.total_cost * (info.slowest_over_mean or 1.0)

    def since(self, before: "Load") -> dict[str, float]:
        """Averages per step since an earlier moment: fill, cost of a step, slowest over mean."""
        steps, cost = self.steps - before.steps, self.cost - before.cost
        return {
            "fill": (self.fill - before.fill) / max(1, steps),
            "cost": cost / max(1, steps),
            "slowest_over_mean": (self.slowest - before.slowest) / cost if cost else 1.0,
        }

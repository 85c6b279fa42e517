"""What ends a step badly: a loss or a gradient that is not finite, or no memory left."""

import json
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from titan_integration.data.dataloader import OdbDataLoader, TitanBatch
from titan_integration.errors import UserError
from titan_integration.process_groups import gather
from titan_integration.run.failures import first_line

_NAMED = 6  # samples in the message; all of them are in a file


@dataclass(kw_only=True, slots=True)
class Step:
    """A step of this rank.

    Attributes:
        number: Of the step.
        indices: Samples.
        losses: Of its microbatches, each a sum divided by all ranks' loss tokens.
        norms: The gradient norm, once it is known; the same on all ranks.
    """

    number: int
    indices: list[int] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    norms: list[torch.Tensor] = field(default_factory=list)

    def is_bad(self) -> torch.Tensor:
        """Whether a value is not finite, without waiting for the device."""
        found = (*self.losses, *self.norms)  # a pipeline gives a loss as a tensor of one value
        values = torch.cat([_local(value).float().reshape(-1) for value in found])
        return ~values.isfinite().all()

    def told(self) -> tuple[float, float]:
        """Loss and gradient norm; waits for the device."""
        loss = sum(float(_local(value)) for value in self.losses)
        return loss, float(_local(self.norms[-1])) if self.norms else math.nan


class Health:
    """Watches for values that are not finite without making a device wait.

    On a CPU a step is judged when it ends. Elsewhere its values are copied while the next step
    runs and judged after that one; :meth:`is_bad_now` waits, for the moment before a save.
    """

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=2)
        self._copying: tuple[torch.Tensor, Any] | None = None

    def begin_step(self, number: int) -> None:
        """The step that is noted for from now on."""
        self._steps.append(Step(number=number))

    def note_samples(self, indices: Iterable[int]) -> None:
        """Samples of a microbatch."""
        self._steps[-1].indices += indices

    def note_loss(self, loss: torch.Tensor) -> None:
        """A microbatch's loss."""
        if self._steps:
            self._steps[-1].losses.append(loss.detach())

    def note_norm(self, norm: torch.Tensor) -> None:
        """The step's gradient norm."""
        if self._steps:
            self._steps[-1].norms.append(norm.detach())

    def end_step(self) -> bool:
        """Whether this step, or on a device the one before it, was bad on this rank."""
        bad = self._steps[-1].is_bad()
        if bad.device.type == "cpu":
            return bool(bad)
        before, host = self._copying, torch.empty((), dtype=torch.bool, pin_memory=True)
        host.copy_(bad, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        self._copying = (host, done)
        if before is None:
            return False
        before[1].synchronize()
        return bool(before[0])

    def is_bad_now(self) -> bool:
        """Whether a value seen so far is not finite; waits for the device."""
        return any(bool(step.is_bad()) for step in self._steps if step.losses)

    def first_bad(self) -> Step:
        """The first step with a value that is not finite here, else the latest."""
        bad = [step for step in self._steps if step.losses and bool(step.is_bad())]
        return (bad or list(self._steps))[0]


def _local(value: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return whole


def not_finite(
    health: Health, odb: OdbDataLoader | None, group: dist.ProcessGroup | None, dump_folder: str
) -> UserError:
    """The error that names the first bad step and its samples; all ranks make it together."""
    step = health.first_bad()
    loss, norm = step.told()
    numbered = odb is not None and odb.inputs is not None  # rows of a stream have no number
    places = [odb.samples.where(i) for i in step.indices] if odb is not None and numbered else []
    mine = {"step": step.number, "loss": loss, "grad_norm": norm, "samples": places}
    ranks: list[Any] = gather(mine, group)
    number = min(rank["step"] for rank in ranks)
    ranks = [{"rank": i, **rank} for i, rank in enumerate(ranks)]
    culprits = [rank for rank in ranks if not math.isfinite(rank["loss"])] or ranks
    named = [place for rank in culprits for place in rank["samples"]]
    path = Path(dump_folder) / f"not_finite_step_{number}.json"
    where = ""
    if dist.get_rank() == 0 and numbered:
        path.write_text(json.dumps({"step": number, "ranks": ranks}, indent=2) + "\n")
    if numbered:
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        where = f" on {', '.join(named[:_NAMED])}{more} (all samples of the step in {path})"
    total = sum(rank["loss"] for rank in ranks)
    return UserError(
        f"step {number} was not finite: loss {total:g}, gradient norm {norm:g}{where}; no "
        "checkpoint holds it: look at these rows or set a lower learning rate, and the same "
        "command goes on from before"
    )


@dataclass(kw_only=True, slots=True)
class Memory:
    """The largest microbatch that went through, to tell a budget that fits after one did not.

    Attributes:
        fitted: Its padded tokens; 0 before the first.
    """

    fitted: int = 0

    def note(self, batches: list[TitanBatch]) -> None:
        """These microbatches went through."""
        self.fitted = max(self.fitted, *(labels.numel() for _, labels in batches))

    def explain(self, error: Exception, failed: list[TitanBatch], budget: int) -> UserError:
        """The error with the shapes of the step, the budget, and one that fits."""
        shapes = [list(labels.shape) for _, labels in failed]
        rows, length = max(shapes, key=lambda shape: shape[0] * shape[1])
        fits = self.fitted if 0 < self.fitted < rows * length else rows * length // 2
        if rows == 1 and length > fits:
            remedy = (
                f"one sample of {length} tokens alone is too much: lower --training.seq_len, or "
                f"set --data.odb.token_budget {fits} --data.odb.overlong drop"
            )
        else:
            known = "fitted before" if fits == self.fitted else "is half of it"
            remedy = f"--data.odb.token_budget {fits} {known}"
        return UserError(
            f"out of memory on a batch of {rows} x {length} = {rows * length} padded tokens with "
            f"data.odb.token_budget {budget} ({first_line(error)[:120]}); {remedy}, and the same "
            "command goes on"
        )

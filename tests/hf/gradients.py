"""Trainers that compare each optimizer step's gradient with a float64 reference.

The reference sees the step's rows one by one, unpadded, in one process: the sum of their token
losses divided by their number of loss tokens, over all ranks and accumulated batches.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from hf_integration import OdbArguments, OdbTrainerMixin
from hf_integration.upstream import TrainerCallback
from odb_nodes.protocol.transport import gather

Labels = Any  # row -> labels, as long as the row's tokens


def row_labels(row: Any) -> torch.Tensor:
    return torch.tensor(row["labels"])


def all_labels(row: Any) -> torch.Tensor:
    return torch.tensor(row["input_ids"])


@dataclass
class Report:
    """What a run's steps came to."""

    errors: list[float] = field(default_factory=list)
    idle: int = 0
    samples: int = 0


class Checked(OdbTrainerMixin):  # type: ignore[misc]
    """Before any Trainer: checks the gradient right before the optimizer uses it."""

    def __init__(self, *args: Any, labels: Labels = row_labels, smoothing: float = 0.0, **kw: Any):
        super().__init__(*args, **kw)
        self.labels, self.smoothing, self.report = labels, smoothing, Report()
        self.add_callback(_Check(self))

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        self.drawn: list[Any] = []
        return super().get_batch_samples(self._noting(epoch_iterator), num_batches, device)

    def _noting(self, steps: Any) -> Any:
        for step in steps:
            self.drawn.append(step)
            yield step

    def step_indices(self) -> list[int]:
        """Dataset indices of the step's rows over all ranks."""
        infos = [info for step in self.drawn for info in step.infos]
        self.report.idle += sum(info.idle for info in infos)
        own = [view.index for info in infos for view in info.views]
        ranks = gather(own) if dist.is_initialized() else [own]
        return [index for rank in ranks for index in rank]

    def check(self) -> None:
        """Note the relative error (L2) of the gradients that the optimizer is about to use."""
        model = self.accelerator.unwrap_model(self.model)
        got = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        self.note(got, model)

    def note(self, got: dict[str, Any], model: Any) -> None:
        indices = self.step_indices()
        self.report.samples += len(indices)
        if self.args.process_index:
            return
        wanted = self.reference(model, [self.train_dataset[i] for i in indices])
        distance = sum(float((got[n].double() - wanted[n]).square().sum()) for n in wanted)
        size = sum(float(g.square().sum()) for g in wanted.values())
        self.report.errors.append((distance / size) ** 0.5 if size else distance)

    def reference(self, model: Any, rows: list[Any]) -> dict[str, torch.Tensor]:
        twin = copy.deepcopy(model).double().train()
        twin.zero_grad(set_to_none=True)
        total = 0
        for row in rows:
            ids = torch.tensor([row["input_ids"]])
            logits = twin(input_ids=ids).logits[0, :-1]
            labels = self.labels(row)[1:]
            self.token_losses(logits, labels).backward()
            total += int((labels != -100).sum())
        params = [(n, p) for n, p in twin.named_parameters() if p.requires_grad]
        return {n: p.grad / max(1, total) for n, p in params if p.grad is not None}

    def token_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing)


class _Check(TrainerCallback):
    def __init__(self, trainer: Checked) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.trainer.check()


def odb(**changes: Any) -> OdbArguments:
    return OdbArguments(**{"token_budget": 256, "window": 16, **changes})

"""A training run that compares each optimizer step's gradient with a float64 reference.

The reference sees the step's samples one by one, unpadded, on one process: the sum of their token
losses divided by their number of loss tokens, over all ranks and microbatches. Rank 0 writes the
relative errors to ``gradients.json`` in the dump folder.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from odb_nodes import StepInfo
from titan_integration import cpu

cpu.patch()

from titan_integration.training.trainer import OdbTrainer  # noqa: E402
from titan_integration.upstream import ConfigManager  # noqa: E402


class CheckedTrainer(OdbTrainer):
    """Notes the samples of a step, and checks the gradient before the optimizer uses it."""

    def __init__(self, config: OdbTrainer.Config) -> None:
        super().__init__(config)
        self.drawn: list[StepInfo] = []
        self.errors: list[float] = []
        self.num_idle: list[int] = []
        self.report: dict[str, list[float]] = {}
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(self._check)

    def _draw(self, odb: Any, data_iterator: Any) -> Any:
        seen = self._noting(odb, data_iterator)
        return super()._draw(odb, seen)

    def _noting(self, odb: Any, batches: Any) -> Any:
        for batch in batches:
            self.drawn.append(odb.info)
            yield batch

    def _check(self, *_: Any) -> None:
        if not self.drawn:
            return  # loading a checkpoint makes torchtitan step the optimizer once, without data
        model = self.model_parts[0]
        weights = {name: _full(p.detach()) for name, p in model.named_parameters()}
        grads = {
            name: torch.zeros(()) if p.grad is None else _full(p.grad)
            for name, p in model.named_parameters()
        }
        indices = [view.index for info in self.drawn for view in info.views]
        idle = self.gradient_accumulation_steps - sum(not info.idle for info in self.drawn)
        self.drawn = []
        world = dist.get_world_size()
        everyone: list[Any] = [None] * world
        dist.all_gather_object(everyone, (indices, idle))
        if dist.get_rank() == 0:
            wanted = self._reference(weights, [i for indices, _ in everyone for i in indices])
            distance = sum(float((grads[n].double() - wanted[n]).square().sum()) for n in wanted)
            size = sum(float(g.square().sum()) for g in wanted.values())
            self.errors.append((distance / size) ** 0.5)
            self._note(wanted, grads)
            self.num_idle.append(sum(idle for _, idle in everyone))

    def _note(self, wanted: dict[str, torch.Tensor], grads: dict[str, torch.Tensor]) -> None:
        """For subclasses: compare more than the whole."""

    def _reference(
        self, weights: dict[str, torch.Tensor], indices: list[int]
    ) -> dict[str, torch.Tensor]:
        model = self.model_config.build()
        model.init_weights(buffer_device=None)
        model.double()  # first: the weights may be float64
        model.load_state_dict(weights, strict=False)
        loader: Any = self.dataloader
        total = 0
        for index in indices:
            sample = loader.encoder(loader.samples[index])
            ids, labels = (torch.from_numpy(sample[key]) for key in ("input_ids", "labels"))
            masks = {}
            if loader.config.data.odb.layout == "packed":
                positions = torch.arange(len(ids))[None]
                masks = {"attention_masks": model.get_attention_masks(positions=positions)}
            logits = model(ids[None], **masks)[0]
            loss = F.cross_entropy(logits.double(), labels, reduction="sum")
            loss.backward()
            total += int((labels != -100).sum())
        return {name: p.grad / total for name, p in model.named_parameters()}


def _full(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.clone()


def main(kind: type[CheckedTrainer] = CheckedTrainer) -> None:
    """Train as the command line says."""
    config = ConfigManager().parse_args()
    config.validate()
    trainer = kind(config)
    trainer.train()
    if dist.get_rank() == 0:
        report = {"errors": trainer.errors, "idle": trainer.num_idle, **trainer.report}
        (Path(config.dump_folder) / "gradients.json").write_text(json.dumps(report))
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Lightning: a whole optimizer step per batch, optimized by hand; checkpoints resume mid-epoch.

    torchrun --nproc_per_node=2 -m examples.lightning_module

Lightning fetches one batch ahead, divides by ``accumulate_grad_batches`` also where the last group
is shorter, keeps rank 0's loader state alone, and does not load that in every case. So the module
accumulates itself, tells the data what is trained, and keeps all ranks' states in its checkpoint.
"""

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from examples.shared import make_loader, parse, sum_loss
from odb_nodes import OdbBatch, OdbLoader, SharedState, optimizer_steps, sum_weight
from tools.train_ddp import Model


class Steps:
    """Optimizer steps of one epoch per ``iter()``; its state is after the step trained last.

    The numbers of loss tokens travel as a plain float: Lightning moves batches between devices by
    rebuilding them, which it refuses for frozen records such as ``StepInfo``.
    """

    def __init__(self, loader: OdbLoader, accumulation: int, world_size: int) -> None:
        self.loader, self.align = loader, loader.align
        self._accumulation, self._world_size = accumulation, world_size
        self._fetched: list[dict[str, Any]] = []
        self._trained: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._fetched = []
        for batches in optimizer_steps(self.loader, self._accumulation):
            self._fetched.append(self.loader.state_dict())
            weight = sum_weight(batches, self._world_size)
            yield {"tensors": [batch.tensors for batch in batches], "weight": weight}
        if self._fetched:
            self._fetched[-1] = self.loader.state_dict()  # of an epoch that has ended

    def trained(self) -> None:
        """The oldest step that was fetched is trained."""
        self._trained = self._fetched.pop(0)

    def state_dict(self) -> dict[str, Any]:
        """After the step trained last, whatever was fetched since."""
        return self._trained or self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there at the next ``iter()``."""
        self.loader.load_state_dict(state)
        self._trained = state


class Stateless:
    """An iterable that shows nothing but its iterator."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._steps)


class Module(lightning.LightningModule):
    """The model with its data."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.args = args
        torch.manual_seed(0)
        self.model = Model()

    def setup(self, stage: str) -> None:
        """Make the loader: the process group is there, the checkpoint not yet loaded."""
        steps = Steps(make_loader(self.args), self.args.accumulation, self.trainer.world_size)
        self.steps, self.data = steps, SharedState(steps)  # type: ignore[arg-type]

    def train_dataloader(self) -> Iterable[dict[str, Any]]:
        """Without a state of its own: Lightning would keep rank 0's alone."""
        return Stateless(self.steps)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.args.rate)

    def training_step(self, batch: dict[str, Any], _: int) -> None:
        """Accumulate, reducing gradients over ranks with the last batch only."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, lightning.pytorch.core.optimizer.LightningOptimizer)
        ddp, last = self.trainer.model, batch["tensors"][-1]
        for tensors in batch["tensors"]:
            waits = hasattr(ddp, "no_sync") and tensors is not last
            with ddp.no_sync() if waits else contextlib.nullcontext():  # type: ignore[union-attr,operator]
                loss = sum_loss(self.model, OdbBatch(tensors, None), self.device)  # type: ignore[arg-type]
                self.manual_backward(loss * batch["weight"])
        optimizer.step()
        optimizer.zero_grad()
        self.steps.trained()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["data"] = self.data.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.data.load_state_dict(checkpoint["data"])

    def teardown(self, stage: str) -> None:
        self.steps.loader.shutdown()


def train(args: argparse.Namespace) -> torch.nn.Module:
    """Train to the end of the epochs, or for ``max_steps`` more steps; returns the model."""
    module, last = Module(args), args.folder / "last.ckpt"
    keep = ModelCheckpoint(
        args.folder,
        save_last=True,
        save_top_k=0,
        every_n_train_steps=args.save_every,
        enable_version_counter=False,
    )
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        max_epochs=args.epochs,
        max_steps=args.max_steps or -1,
        callbacks=[keep],
        use_distributed_sampler=False,  # the loader deals out the samples
        logger=False,
        devices="auto" if torch.cuda.is_available() else args.devices,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, ckpt_path=str(last) if last.exists() else None)
    return module.model


if __name__ == "__main__":
    train(parse())

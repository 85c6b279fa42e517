"""The plain PyTorch example, smaller, with a list of what it trained on: for test_train_ddp."""

import json
import os
from pathlib import Path

import torch

import odb_nodes
from tools import train_ddp


class AuditedRun(train_ddp.Run):
    """Appends epoch, step and positions of every batch to a file of the rank."""

    def step(self, batches: list[odb_nodes.OdbBatch]) -> torch.Tensor:
        loss = super().step(batches)
        folder = Path(os.environ["AUDIT"])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"rank{self.rank}.jsonl").open("a") as file:
            for info in (batch.info for batch in batches):
                row = [info.epoch, info.step, [view.position for view in info.views]]
                file.write(json.dumps(row) + "\n")
        return loss


if __name__ == "__main__":
    train_ddp.WIDTH, train_ddp.DEPTH = 8, 1
    train_ddp.Run = AuditedRun  # type: ignore[misc]
    train_ddp.main()

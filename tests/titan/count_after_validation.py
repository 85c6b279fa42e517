"""A training run that writes down, after each validation, what the process holds."""

import json
import os
import threading
from pathlib import Path

import torch.distributed as dist

from titan_integration import cpu

cpu.patch()

from titan_integration.train import main  # noqa: E402
from titan_integration.training.validator import OdbValidator  # noqa: E402

counts: list[list[int]] = []
original = OdbValidator.validate


def validate(self: OdbValidator, model_parts: list, step: int) -> None:  # type: ignore[type-arg]
    """Validate, then count process groups, threads and child processes."""
    original(self, model_parts, step)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    counts.append([len(dist.distributed_c10d._world.pg_map), threading.active_count()])
    counts[-1].append(len(children))
    prefix = self._builder.config.data.audit_log
    path = Path(prefix).parent / f"counts.rank{dist.get_rank()}.json"
    path.write_text(json.dumps(counts))


OdbValidator.validate = validate  # type: ignore[method-assign]

if __name__ == "__main__":
    main()

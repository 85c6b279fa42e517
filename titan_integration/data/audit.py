"""Log of the samples each step trained on, for checks that nothing was lost or repeated."""

import json
from pathlib import Path
from typing import Any

from odb_nodes.types import StepInfo


class AuditLog:
    """One JSON line a microbatch, handed to the system at once so that SIGKILL loses none.

    A line is ``{"step", "epoch", "positions", "indices"}``; a run that starts or resumes first
    writes ``{"resumed_from": step, "dp_rank", "dp_world_size"}``: earlier lines of later steps
    were not part of the run that followed.

    Args:
        prefix: Lines are appended to ``{prefix}.rank{rank}.jsonl``.
        rank: Global rank.
    """

    def __init__(self, prefix: str, rank: int) -> None:
        path = Path(f"{prefix}.rank{rank}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="ascii")  # a write at every newline

    def start(self, resumed_from: int, dp_rank: int, dp_world_size: int) -> None:
        """Note that a run begins after step ``resumed_from`` (0: at the beginning)."""
        self._write(resumed_from=resumed_from, dp_rank=dp_rank, dp_world_size=dp_world_size)

    def add(self, step: int, info: StepInfo) -> None:
        """Note one microbatch of optimizer step ``step``; an IDLE one has no samples."""
        views = () if info.idle else info.views
        self._write(
            step=step,
            epoch=info.epoch,
            positions=[view.position for view in views],
            indices=[view.index for view in views],
        )

    def close(self) -> None:
        """Close the file; harmless when closed already."""
        self._file.close()

    def _write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")

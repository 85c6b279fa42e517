"""Watches what a run's samples are made from: while it runs, and when it goes on."""

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch.distributed as dist

from odb_nodes.state.description import align_state, pending_to_window
from titan_integration.data.config import DataConfig
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.fingerprints import NOT_OF_SAMPLES, Inputs, compare, inputs_of
from titan_integration.data.inputs.mixture import Mixture
from titan_integration.errors import UserError

logger = logging.getLogger(__name__)


class InputWatch:
    """The fingerprints of a run's inputs; all ranks make it together.

    Args:
        rows: That are trained on.
        encoder: That turns them into samples.
        data: Settings of both.
        rank: That shares the reading.
        group: Of the ranks that read the same rows; None in a world of one.

    Attributes:
        now: Fingerprints, for the state.
        changed: Whether samples may be others than those that a state was saved with.
    """

    def __init__(
        self,
        rows: Mixture,
        encoder: Encoder,
        data: DataConfig,
        *,
        rank: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._data, self._rank, self._group = data, rank, group
        self._paths = [Path(name) for name in rows.files if Path(name).is_file()]
        self.changed = False
        self._grown: set[Path] = set()  # that were warned of
        options = {f"data.{f.name}": getattr(data, f.name) for f in fields(data)}
        options = {k: v for k, v in options.items() if k.partition(".")[2] not in NOT_OF_SAMPLES}
        if data.too_long != "error":
            options["training.seq_len"] = encoder.encoding.max_len
        if len(self._paths) < len(rows.files):
            options["the data's fingerprint"] = rows.fingerprint()
        path = str(encoder.tokenizer.tokenizer_path)
        self.now: Inputs = inputs_of(self._paths, path, options, rank=rank, group=group)

    def look_at_files(self) -> None:
        """Raise UserError if a file has shrunk since it was read; warn of one that has grown."""
        for path, file in zip(self._paths, self.now.files, strict=True):
            size = path.stat().st_size if path.exists() else 0
            if size < file["bytes"]:
                raise UserError(
                    f"{path} had {file['bytes']} bytes when it was opened and has {size} now: rows "
                    "are missing; put the file back as it was and run the same command again"
                )
            if size > file["bytes"] and path not in self._grown:
                self._grown.add(path)
                logger.warning(
                    "%s has grown from %d to %d bytes since it was opened: its new rows are no "
                    "part of this run",
                    *(path, file["bytes"], size),
                )

    def accept(self, then: Inputs | None, num_then: int | None, num_now: int, epoch: int) -> bool:
        """Compare with what a state was saved with; all ranks together.

        Args:
            then: Of the state; None where it has none.
            num_then: Samples of the state's epoch.
            num_now: Samples that there are.
            epoch: Of the state, from 0.
        Returns:
            Whether samples were appended, which the state's epoch must not have.
        Raises:
            UserError: Something changed, and ``data.accept_changed`` is off.
        """
        if then is None or num_then is None:
            logger.info("the checkpoint does not say what data it is of: that is not checked")
            self.now.samples = num_now
            return False
        self.now.samples = num_now
        change = compare(then, self.now, self._paths, self._rank, self._group)
        appended = num_now - num_then
        movable = not (self._data.mix or self._data.validation_fraction)
        known = then.samples == num_now  # accepted by an earlier process of the run
        if appended > 0 and movable and not known and not change.reasons:
            change.reasons.append(self._joins(appended, epoch + 2))
        if change.reasons and not self._data.accept_changed:
            raise UserError(
                f"what is trained on is not what it was: {'; '.join(change.reasons)}; undo that, "
                "or go on with it by --data.accept_changed"
            )
        self.changed = bool(change.reasons)
        if change.reasons:
            logger.warning("going on with what changed: %s", "; ".join(change.reasons))
        return appended > 0 and movable

    def _joins(self, appended: int, epoch: int) -> str:
        """The new samples and the first epoch that has them, counted from 1."""
        last = self._data.num_epochs
        late = f", and this run ends with {last}" if last is not None and epoch > last else ""
        return f"{appended} rows were appended; they join epoch {epoch}{late}"


def without_lengths(state: Any) -> Any:
    """A state that says which samples are left, and nothing of how long they are."""
    plain: Any = pending_to_window(align_state(state))
    plain["source"]["held_tokens"] = plain["source"]["held_loss_tokens"] = None
    return plain

"""The data's part of a checkpoint folder, and which folders are whole."""

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_integration.errors import Refusal
from hf_integration.upstream import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME
from odb_nodes import StateError, pack_states, unpack_states
from titan_integration.data.totals import Totals, merge

logger = logging.getLogger(__name__)
STATE_FILE = "odb_state.safetensors"
TOTALS_FILE = "odb_totals.json"
_NUMBERED = re.compile(rf"^{PREFIX_CHECKPOINT_DIR}-(\d+)$")


def write(folder: Path, states: Sequence[Any], totals: Sequence[Totals]) -> None:
    """Write states and counts of all ranks, each file whole or not at all.

    The Trainer writes ``trainer_state.json`` last, which marks the folder as whole; one that is
    left there by an earlier run is taken away first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
    _replace(folder / STATE_FILE, pack_states(states))
    _replace(folder / TOTALS_FILE, json.dumps(asdict(merge(totals))).encode())


def read(folder: Path) -> tuple[list[Any], Totals]:
    """States of all ranks that saved, and the counts of them all.

    Raises:
        Refusal: They are missing or damaged.
    """
    try:
        states = unpack_states((folder / STATE_FILE).read_bytes())
        return states, Totals(**json.loads((folder / TOTALS_FILE).read_text()))
    except FileNotFoundError as error:
        raise Refusal(
            f"{folder} has no {Path(error.filename).name}: it was saved without online dynamic "
            "batching; resume it without, or begin anew in another output_dir"
        ) from None
    except (StateError, TypeError, ValueError) as error:
        raise Refusal(f"{folder}: the data's state is damaged: {error}") from error


def is_complete(folder: Path) -> bool:
    """Whether the Trainer had finished writing it."""
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text())
    except (OSError, ValueError):
        return False
    return True


def newest_complete(output_dir: Path) -> Path | None:
    """The checkpoint with the highest step that is whole; what is skipped gets a warning."""
    if not output_dir.is_dir():
        return None
    numbered = [(m, path) for path in output_dir.iterdir() if (m := _NUMBERED.match(path.name))]
    for _, path in sorted(numbered, key=lambda pair: int(pair[0][1]), reverse=True):
        if is_complete(path):
            return path
        logger.warning("%s is incomplete (the run ended while it was written): skipped", path)
    return None


def resolve(asked: str | bool | None, output_dir: Path) -> Path | None:
    """The folder to resume from; None begins at the start.

    Args:
        asked: As ``Trainer.train`` takes it. True is the newest whole checkpoint, if there is any,
            so that the same command starts a run and resumes it. An incomplete folder in
            ``output_dir`` (which ``get_last_checkpoint`` may give) stands for the newest whole one.
        output_dir: Of the run.
    Raises:
        Refusal: A folder elsewhere is not a whole checkpoint.
    """
    if asked is None or asked is False:
        return None
    if asked is True:
        return newest_complete(output_dir)
    folder = Path(asked)
    if is_complete(folder):
        return folder
    if folder.parent.resolve() == output_dir.resolve():
        return newest_complete(output_dir)
    raise Refusal(f"resume_from_checkpoint must be a whole checkpoint, {folder} is none")


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)

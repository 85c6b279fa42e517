"""The result of a check on disk, so that a resumed run does not repeat it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from titan_integration.data.checks.report import Report


@dataclass(frozen=True, slots=True)
class Checked:
    """A check that was passed.

    Attributes:
        report: What it found.
        counts: Samples of each row, ``int64[rows]``; None where each gives one.
    """

    report: Report
    counts: np.ndarray | None


def load(folder: Path, key: str) -> Checked | None:
    """The result of a check of the same rows by the same encoder; None if there is none."""
    try:
        with np.load(folder / f"{key}.npz", allow_pickle=False) as stored:
            report = Report.from_dict(json.loads(stored["report"].tobytes()))
            counts = stored.get("counts")
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None  # Absent, of another version, or half written: the check is made again.
    return Checked(report, counts)


def store(folder: Path, key: str, checked: Checked) -> None:
    """Keep a result, all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"report": np.frombuffer(json.dumps(checked.report.to_dict()).encode(), np.uint8)}
    if checked.counts is not None:
        arrays["counts"] = checked.counts
    temporary = folder / f".{key}.{os.getpid()}.npz"
    np.savez(temporary, **arrays)  # type: ignore[arg-type]
    os.replace(temporary, folder / f"{key}.npz")

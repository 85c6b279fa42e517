"""Rows of results, what they were measured on, and their JSON file."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA = 2
_PACKAGES = ("torch", "torchdata", "torchtitan", "numpy", "online-dynamic-batching")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One cell group of the big table.

    Attributes:
        measure: What was measured, e.g. "shape".
        workload: On which lengths.
        column: Of which loader.
        values: By name: a number, or the spread of several runs (``spread``).
        window: Samples buffered a rank, where that matters.
        world: Number of ranks.
    """

    measure: str
    workload: str
    column: str
    values: dict[str, Any]
    window: int | None = None
    world: int = 1


def spread(runs: Sequence[float]) -> dict[str, Any]:
    """Median, lowest and highest of repeated runs, and the runs."""
    return {
        "median": statistics.median(runs),
        "low": min(runs),
        "high": max(runs),
        "runs": list(runs),
    }


def middle(value: Any) -> float:
    """A value of a row as one number: the median of a spread."""
    return float(value["median"] if isinstance(value, dict) else value)


def find(rows: Iterable[Row], measure: str, **wanted: Any) -> list[Row]:
    """Rows of a measure whose fields have the wanted values."""
    return [
        row
        for row in rows
        if row.measure == measure
        and all(getattr(row, name) == value for name, value in wanted.items())
    ]


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and system."""
    return {
        "processor": _first(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory": _first(Path("/proc/meminfo"), "MemTotal"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def load_average() -> float:
    """Processes that want to run, on average over the last minute: how noisy it is here."""
    return round(os.getloadavg()[0], 1)


def now() -> str:
    """Time of day."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_software() -> dict[str, str]:
    """Versions of what takes part."""
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit measured, with a mark if there are changes on top."""
    told = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(told, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """What one section of the benchmark found.

    Attributes:
        rows: Its results.
        meta: When, where, of which commit and versions, by which command.
    """

    rows: list[Row]
    meta: dict[str, Any]


def write(path: Path, sections: Mapping[str, Section]) -> None:
    """Write sections to a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": SCHEMA, "sections": {n: asdict(s) for n, s in sections.items()}}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")


def read(path: Path) -> dict[str, Section]:
    """Inverse of ``write``.

    Raises:
        ValueError: A file of another schema.
    """
    content = load(path)
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {content.get('schema')}, this reads {SCHEMA}")
    return {
        name: Section(rows=[Row(**row) for row in section["rows"]], meta=section["meta"])
        for name, section in content["sections"].items()
    }


def load(path: Path) -> Any:
    """A JSON file's content."""
    return json.loads(path.read_text(encoding="ascii"))


def _first(path: Path, key: str) -> str | None:
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith(key):
                return " ".join(line.split(":", 1)[1].split())
    return None

"""Which of a folder's checkpoints are whole, and the newest of them.

A checkpoint of ``torch.distributed.checkpoint`` is an index, ``.metadata``, and shards,
``*.distcp``. The index is written last and names the bytes of every entry, so that a look at it and
at the files' sizes tells a whole checkpoint from one that was cut short, without the weights.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader

INDEX = ".metadata"
# Lies in a folder from the moment that a save into it begins until its end is known. With it, a
# folder without an index was never whole; without it, such a folder has lost its index.
UNFINISHED = ".unfinished"
_STEP = re.compile(r"step-(\d+)")
_ENTRY_STARTS = b"PK\x03\x04"  # every entry is a zip archive, as torch.save writes it
ODB_KEY = "dataloader.odb"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A folder ``step-N``.

    Attributes:
        step: N.
        path: The folder.
        problem: Why it cannot be resumed from; None: it can.
        lost: Whether something of it is missing or damaged; a mere export is not.
        begun: Whether it is a save that did not end, so that nothing whole was lost.
    """

    step: int
    path: Path
    problem: str | None = None
    lost: bool = False
    begun: bool = False


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of all folders ``step-N``, whole or not, the newest first."""
    if not folder.is_dir():
        return []
    found = ((_STEP.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def examine(step: int, path: Path) -> Checkpoint:
    """Look at a checkpoint without reading its weights: index, shards, sizes, what it holds."""
    if not (path / INDEX).is_file():
        exported = any(path.glob("*.safetensors")) or any(path.glob("sharded/*.safetensors"))
        why = (
            "it holds only weights in Hugging Face format"
            if exported
            else f"it has no {INDEX}, its save did not end"
        )
        begun = not exported and (path / UNFINISHED).exists()
        return Checkpoint(step=step, path=path, problem=why, lost=not exported, begun=begun)
    try:
        places = read_places(path)
    except Exception as error:  # whatever unpickling damaged bytes raises
        why = f"its {INDEX} cannot be read ({type(error).__name__})"
        return Checkpoint(step=step, path=path, problem=why, lost=True)
    damage = _damage(path, places)
    if damage is None and step > 0 and not any(key.startswith("train_state.") for key in places):
        return Checkpoint(step=step, path=path, problem="it holds only weights")
    return Checkpoint(step=step, path=path, problem=damage, lost=damage is not None)


def read_places(path: Path) -> dict[str, list[Any]]:
    """Of every key, where its parts lie: ``relative_path``, ``offset`` and ``length`` of each."""
    places: dict[str, list[Any]] = {}
    data: dict[Any, Any] = FileSystemReader(path).read_metadata().storage_data or {}
    for index, place in data.items():
        places.setdefault(index.fqn, []).append(place)
    return places


def _damage(path: Path, places: dict[str, list[Any]]) -> str | None:
    if not places:
        return f"its {INDEX} names no entries"
    by_file: dict[str, list[Any]] = {}
    for entries in places.values():
        for place in entries:
            by_file.setdefault(place.relative_path, []).append(place)
    problems = (_damage_of_file(path / name, entries) for name, entries in sorted(by_file.items()))
    return next((problem for problem in problems if problem is not None), None)


def _damage_of_file(path: Path, entries: Sequence[Any]) -> str | None:
    if not path.is_file():
        return f"its {path.name} is missing"
    size, needed = path.stat().st_size, max(place.offset + place.length for place in entries)
    if size < needed:
        return f"its {path.name} has {size} of {needed} bytes"
    with path.open("rb") as file:
        for place in entries:
            file.seek(place.offset)
            plain = place.transform_descriptors is None
            if plain and place.length >= 4 and file.read(4) != _ENTRY_STARTS:
                return f"its {path.name} is damaged at byte {place.offset}"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a run begins with.

    Attributes:
        checkpoint: The newest one that can be resumed from; None if there is none.
        passed_over: Newer ones, the newest first, each with its problem.
    """

    checkpoint: Checkpoint | None
    passed_over: tuple[Checkpoint, ...]

    def reasons(self) -> str:
        """Names and problems, as ``step-9: its save did not end; step-6: ...``."""
        return "; ".join(f"{found.path.name}: {found.problem}" for found in self.passed_over)


def newest_whole(folder: Path) -> Choice:
    """The newest checkpoint of the folder that can be resumed from, and what was passed over."""
    passed_over: list[Checkpoint] = []
    for found in _newest_first(folder):
        if found.problem is None:
            return Choice(checkpoint=found, passed_over=tuple(passed_over))
        passed_over.append(found)
    return Choice(checkpoint=None, passed_over=tuple(passed_over))


def _newest_first(folder: Path) -> Iterator[Checkpoint]:
    for step, path in steps_in(folder):
        yield examine(step, path)

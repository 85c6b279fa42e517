"""What must be equal on all ranks of a round: a digest to compare, and text to explain. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from odb_nodes.state.permutation import key64


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Settings and place that all ranks must share, or they would run different collectives.

    Attributes:
        settings: By name; JSON values.
        settings_key: Digest of the settings, computed once.
        epoch: Pass over the data.
        step: Steps delivered in it.
    """

    settings: Mapping[str, Any]
    settings_key: int = field(default=-1)
    epoch: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        if self.settings_key < 0:
            text = json.dumps(dict(self.settings), sort_keys=True)
            object.__setattr__(self, "settings_key", key64(*text.encode()))

    @property
    def digest(self) -> int:
        """One non-negative integer that is equal where all of it is."""
        return key64(self.settings_key, self.epoch, self.step) >> 2

    def pack(self) -> bytes:
        """All of it, for the ranks to compare once the digests were found to differ."""
        return json.dumps({**self.settings, "epoch": self.epoch, "step": self.step}).encode()


def explain(packed: Sequence[bytes]) -> str:
    """What differs between ranks: every name, with its values and the ranks that have them.

    For example "window is 64 on ranks 0, 2 and 128 on rank 1".

    Args:
        packed: ``Agreement.pack`` of every rank, by rank.
    """
    known = [json.loads(blob) for blob in packed]
    names = list(dict.fromkeys(name for settings in known for name in settings))
    told = []
    for name in names:
        ranks: dict[str, list[str]] = {}
        for rank, settings in enumerate(known):
            ranks.setdefault(str(settings.get(name)), []).append(str(rank))
        if len(ranks) > 1:
            values = [
                f"{value} on rank{'s' if len(found) > 1 else ''} {_listed(found)}"
                for value, found in ranks.items()
            ]
            told.append(f"{name} is {' and '.join(values)}")
    return "; ".join(told)


def _listed(ranks: list[str], most: int = 8) -> str:
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return ", ".join(ranks[:most]) + more

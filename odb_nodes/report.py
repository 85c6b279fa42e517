"""How far a loader is in its epoch, and how well it does; read off its state."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderReport:
    """How well a loader does, since the beginning of the pass and as seen by this rank.

    Attributes:
        steps: Delivered.
        padding: Part of the padded tokens that is padding, in [0, 1].
        fill: Real tokens of a step over the token budget, on average.
        waiting: Part of the time that the training script spent waiting for batches.
        exchange: Part of the time that this rank's background thread waited for other ranks.
        suggested_window: Samples; larger than now where batches could be fuller.
        suggested_workers: Workers; more than now where the script waits for batches.
    """

    steps: int
    padding: float
    fill: float
    waiting: float
    exchange: float
    suggested_window: int
    suggested_workers: int


def progress_of(told: Mapping[str, Any]) -> float | None:
    """Part of the epoch that is done, in [0, 1], as ``describe_state`` tells it.

    From what is left of this rank's share; None for a stream.
    """
    if told["remaining"] is None:
        return None
    left: float = told["remaining"] * told["world_size"] / max(1, told["num_samples"])
    return 1.0 - min(1.0, left)


def steps_to_come(told: Mapping[str, Any]) -> int | None:
    """Steps that are left of the epoch if they hold as much as those so far; None if unknown."""
    if told["remaining"] is None or not told["total_emitted"]:
        return None
    left: int = told["remaining"] * told["world_size"]
    return math.ceil(left * int(told["steps"]) / int(told["total_emitted"]))


def report_of(
    told: Mapping[str, Any],
    *,
    max_tokens: int,
    waiting: float,
    exchange: float,
    window: int,
    workers: int,
) -> LoaderReport:
    """The report of a loader; see ``LoaderReport``."""
    tokens, padded = told["num_tokens"], told["padded_tokens"]
    fill = tokens / max(1, told["steps"] - told["idle_steps"]) / max_tokens
    return LoaderReport(
        steps=told["steps"],
        padding=1 - tokens / padded if padded else 0.0,
        fill=fill,
        waiting=min(1.0, waiting),
        exchange=min(1.0, exchange),
        suggested_window=window * (4 if fill < 0.8 else 2 if fill < 0.93 else 1),
        suggested_workers=workers + (waiting > 0.05) * max(1, workers),
    )

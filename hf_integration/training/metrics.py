"""What a person sees of a run beside the Trainer's own metrics, the same as with torchtitan."""

import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hf_integration.data.feed import Feed
from titan_integration.data.totals import DROP_REASONS, Totals

_MEANS = ("exchange_wait_s", "data_wait_s", "window_fill")  # over ranks; the others are sums


class Snapshot(NamedTuple):
    """Counters at one moment; metrics are differences of two. Times are in seconds."""

    step: int
    totals: Totals
    time_s: float
    exchange_wait_s: float
    data_wait_s: float


class Meter:
    """Rates and shares since the last call, over all ranks.

    Args:
        feed: Of this rank.
        group: For sums over ranks; None in a world of one.
        step: Steps done.
    Attributes:
        data_wait_s: Seconds that training waited for batches; the caller adds to it.
        began: At construction.
    """

    def __init__(self, feed: Feed, group: Any, step: int) -> None:
        self._feed, self._group = feed, group
        self._world = 1 if group is None else dist.get_world_size(group)
        self.data_wait_s = 0.0
        self.began = self._last = self.snapshot(step)

    def snapshot(self, step: int) -> Snapshot:
        """The counters now."""
        return Snapshot(
            time_s=time.perf_counter(),
            step=step,
            totals=self._feed.current_totals(),
            exchange_wait_s=float(self._feed.loader.exchange_stats()["wait_s"]),
            data_wait_s=self.data_wait_s,
        )

    def read(self, step: int) -> dict[str, float]:
        """Metrics since the last call; every rank must call this."""
        was, now = self._last, self.snapshot(step)
        self._last = now
        total = self._summed(was, now)
        seconds = max(now.time_s - was.time_s, 1e-9)
        tokens = now.totals.tokens - was.totals.tokens - total.pop("room")
        samples = now.totals.samples - was.totals.samples
        padded = total.pop("padded")
        planned = self._feed.goal.samples
        return {
            "odb/real_tokens_per_s": tokens / seconds,
            "odb/padded_tokens_per_s": padded / seconds,
            "odb/padding_ratio": 1 - tokens / padded if padded else 0.0,
            "odb/samples_per_s": samples / seconds,
            "odb/samples_per_step": samples / max(1, step - was.step),
            "odb/samples_emitted": now.totals.samples,
            "odb/run_fraction": now.totals.samples / planned if planned else 0.0,
            "odb/distinct_shapes": len(self._feed.shapes),
            **{f"odb/{name}": value for name, value in total.items()},
        }

    def _summed(self, was: Snapshot, now: Snapshot) -> dict[str, float]:
        own = self._own(was, now)
        sums = torch.tensor(list(own.values()), dtype=torch.float64)
        if self._group is not None:
            dist.all_reduce(sums, group=self._group)
        total = dict(zip(own, sums.tolist(), strict=True))
        return total | {name: total[name] / self._world for name in _MEANS}

    def _own(self, was: Snapshot, now: Snapshot) -> dict[str, float]:
        """This rank's part of what is summed over ranks."""
        held, window = self._feed.loader.fill()
        before, totals = was.totals, now.totals
        return {
            "padded": totals.padded_tokens - before.padded_tokens,
            "room": totals.room - before.room,
            "idle_steps": totals.idle_steps - before.idle_steps,
            "splits": totals.splits - before.splits,
            "recirculated": totals.recirculated - before.recirculated,
            "samples_dropped": totals.num_dropped,
            **{f"dropped/{reason}": totals.dropped.get(reason, 0) for reason in DROP_REASONS},
            "exchange_wait_s": now.exchange_wait_s - was.exchange_wait_s,
            "data_wait_s": now.data_wait_s - was.data_wait_s,
            "window_fill": held / window if window else 0.0,
        }

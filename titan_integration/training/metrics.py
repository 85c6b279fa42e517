"""What a person sees of a run: torchtitan's metrics, with padding and data counts beside them."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.data.totals import DROP_REASONS, Load, Totals
from titan_integration.source_loss import SourceLoss
from titan_integration.upstream import MetricsProcessor

logger = logging.getLogger(__name__)
_MEANS = (  # over ranks; the others are sums
    "exchange_wait_s",
    "data_wait_s",
    "window_fill",
    "fill",
    "cost",
    "slowest_over_mean",
)

_COUNTS = (  # of this rank, since the last log
    "idle_steps",
    "splits",
    "recirculated",
    "room",
    "pictures",
    "patches",
    "padded_patches",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Counters at one moment; metrics are differences of two."""

    time_s: float
    step: int
    totals: Totals
    wait_s: float
    load: Load


class OdbMetricsProcessor(MetricsProcessor):
    """torchtitan's processor; with ODB on, its console line is replaced by one of ours.

    Relies on torchtitan 0.3 for: ``log`` called on every rank at the same logged steps (so that
    it may reduce over ranks), with ``extra_metrics`` passed on to TensorBoard and W&B; and
    ``ntokens_since_last_log`` as the source of speed and MFU.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        show_bar: bool = True
        """A progress bar where stderr is a terminal; plain lines else."""

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.show_bar = config.show_bar and sys.stderr.isatty()
        self._loader: OdbDataLoader | None = None
        self._bar: Any = None
        self._cleanup = contextlib.ExitStack()

    def follow(
        self,
        loader: OdbDataLoader,
        *,
        rows: int | None,
        quota: int | None,
        step: int,
        source_loss: SourceLoss,
    ) -> None:
        """Report on this loader from now on.

        Args:
            loader: Of the whole run.
            rows: Of the whole run, dropped ones included; None if they do not end it.
            quota: Samples trained on that end the run, or None.
            step: Steps done.
            source_loss: Losses by source.
        """
        self._source_loss, self.source_losses = source_loss, dict[str, float]()
        self._loader, self._rows, self._quota = loader, rows, quota
        self._last = self._snapshot(step)
        self.begin_step(num_loss_tokens=0, total_loss_tokens=0)
        if self.show_bar and dist.get_rank() == 0:
            self._cleanup.enter_context(logging_redirect_tqdm([logging.getLogger()]))
            done, goal = loader.totals.samples, self._goal(loader.totals.num_dropped)
            self._bar = tqdm(total=goal, initial=done, unit="sample", dynamic_ncols=True)

    def begin_step(self, *, num_loss_tokens: int, total_loss_tokens: int) -> None:
        """Name the loss tokens of the step about to run: this rank's and all ranks'."""
        self._loss_sum: float | torch.Tensor = 0.0  # a tensor, so that adding does not wait
        self._num_loss_tokens = num_loss_tokens
        self._total_loss_tokens = total_loss_tokens

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add a microbatch's loss: its sum over tokens divided by all ranks' loss tokens."""
        self._loss_sum = self._loss_sum + loss

    def end_step(self) -> None:
        """Move the bar."""
        if self._bar is not None and self._loader is not None:
            self._bar.update(self._loader.totals.samples - self._bar.n)

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """Log a step. With ODB, the largest rank's loss leaves out ranks that had no token."""
        if self._loader is None:
            super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
            return
        max_loss, metrics = self._reduce(step)
        with _quiet(logging.getLogger()):
            super().log(
                step, global_avg_loss, max_loss, grad_norm, {**(extra_metrics or {}), **metrics}
            )
        self._say(step, global_avg_loss, grad_norm, metrics)

    def close(self) -> None:
        """Close the bar and the loggers."""
        if self._bar is not None:
            self._bar.close()
        self._cleanup.close()
        super().close()  # type: ignore[no-untyped-call]

    def _snapshot(self, step: int) -> Snapshot:
        assert self._loader is not None
        totals = self._loader.current_totals()
        wait_s = float(self._loader.loader.exchange_stats()["wait_s"])
        # A copy: the loader goes on counting.
        return Snapshot(
            time_s=time.perf_counter(),
            step=step,
            totals=replace(totals),
            wait_s=wait_s,
            load=replace(self._loader.load),
        )

    def _reduce(self, step: int) -> tuple[float, dict[str, float]]:
        """The largest local loss, and metrics since the last log; all ranks together."""
        assert self._loader is not None
        last, now = self._last, self._snapshot(step)
        self._last = now
        own = self._own(last, now)
        sums = torch.tensor(list(own.values()), dtype=torch.float64)
        local = float(self._loss_sum) * self._total_loss_tokens / max(1, self._num_loss_tokens)
        most = torch.tensor([local if self._num_loss_tokens else float("-inf")])
        if self._loader.group is not None:
            dist.all_reduce(sums, group=self._loader.group)
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self._loader.group)
        total = dict(zip(own, sums.tolist(), strict=True))
        seconds = now.time_s - last.time_s
        tokens = now.totals.tokens - last.totals.tokens - int(total.pop("room"))
        samples = now.totals.samples - last.totals.samples
        padded, world = total.pop("padded"), self._loader.dp_world_size
        goal = self._goal(int(total["samples_dropped"]))
        tower = self._tower(total, seconds)
        means = {name: total.pop(name) / world for name in _MEANS}
        losses = self._source_loss.take(self._loader.group)
        self.source_losses |= losses
        return float(most), {
            **{f"odb/source/{name}/loss": loss for name, loss in losses.items()},
            "odb/real_tokens_per_s": tokens / seconds,
            "odb/padded_tokens_per_s": padded / seconds,
            "odb/padding_ratio": 1 - tokens / padded if padded else 0.0,
            "odb/samples_per_s": samples / seconds,
            "odb/samples_per_step": samples / max(1, step - last.step),
            "odb/samples_emitted": now.totals.samples,
            "odb/run_fraction": now.totals.samples / goal if goal else 0,
            "odb/distinct_shapes": len(self._loader.shapes),
            **tower,
            **{f"odb/{name}": value for name, value in (total | means).items()},
        }

    def _tower(self, total: dict[str, float], seconds: float) -> dict[str, float]:
        """Metrics of pictures, taken out of the sums over ranks; none for a model without them."""
        assert self._loader is not None
        pictures, patches, padded = (
            total.pop(name) for name in ("pictures", "patches", "padded_patches")
        )
        if self._loader.config.vision is None:
            return {}
        return {
            "odb/pictures_per_s": pictures / seconds,
            "odb/patches_per_s": patches / seconds,
            "odb/tower_padding_ratio": 1 - patches / padded if padded else 0.0,
        }

    def _own(self, last: Snapshot, now: Snapshot) -> dict[str, float]:
        """This rank's part of what is summed over ranks."""
        assert self._loader is not None
        held, window = self._loader.loader.fill()
        was, totals = last.totals, now.totals
        return {
            "padded": totals.padded_tokens - was.padded_tokens,
            **{name: getattr(totals, name) - getattr(was, name) for name in _COUNTS},
            "samples_dropped": totals.num_dropped,
            **{f"source/{n}/samples": totals.by_source.get(n, [0, 0])[0] for n in self._names()},
            **{
                f"source/{n}/loss_tokens": totals.by_source.get(n, [0, 0])[1] for n in self._names()
            },
            **{f"dropped/{reason}": totals.dropped.get(reason, 0) for reason in DROP_REASONS},
            "exchange_wait_s": now.wait_s - last.wait_s,
            "data_wait_s": sum(self.data_loading_times),
            "window_fill": held / window if window else 0.0,
            **now.load.since(last.load),
        }

    def _names(self) -> tuple[str, ...]:
        """Sources that are told apart: the same on all ranks, whatever each has seen."""
        assert self._loader is not None
        names = self._loader.rows.names
        return names if len(names) > 1 else ()

    def _goal(self, num_dropped: int) -> int | None:
        """Samples that the run trains on, as far as is known; None if steps alone end it."""
        rows = None if self._rows is None else self._rows - num_dropped
        return min((n for n in (rows, self._quota) if n is not None), default=None)

    def _say(self, step: int, loss: float, grad_norm: float, metrics: dict[str, float]) -> None:
        speed, padding = metrics["odb/real_tokens_per_s"], metrics["odb/padding_ratio"]
        goal = self._goal(int(metrics["odb/samples_dropped"]))
        if self._bar is not None:
            text = f"step {step} loss {loss:.4f} {speed:,.0f} tok/s padding {padding:.1%}"
            self._bar.total = goal
            self._bar.set_postfix_str(text)
            return
        whole = f" of {goal:,}" if goal else ""
        logger.info(
            f"step {step}  {metrics['odb/run_fraction']:.1%}  "
            f"samples {metrics['odb/samples_emitted']:,.0f}{whole}  loss {loss:.5f}  "
            f"grad_norm {grad_norm:.4f}  {speed:,.0f} real tokens/s  padding {padding:.1%}"
        )


@contextlib.contextmanager
def _quiet(target: logging.Logger) -> Iterator[None]:
    """Hold back information lines: torchtitan's step line, which ours replaces."""
    level = target.level
    target.setLevel(logging.WARNING)
    try:
        yield
    finally:
        target.setLevel(level)

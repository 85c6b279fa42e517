"""One call of ``Trainer.train``: its data, how it began, and what it comes to."""

import logging
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hf_integration.arguments import OdbArguments
from hf_integration.data import checkpoint
from hf_integration.data.feed import Feed, explained
from hf_integration.data.goal import Goal
from hf_integration.data.loader import Length, make_loader
from hf_integration.training.limits import check_dataset, check_world_size, shuffles
from hf_integration.training.metrics import Meter
from odb_nodes import reshard_states
from odb_nodes.protocol.transport import gather
from titan_integration.data.totals import Totals, merge, share
from titan_integration.training.summary import Summary, coverage

logger = logging.getLogger(__name__)


class Run:
    """Everything of one call of ``train`` that the Trainer does not keep itself.

    Args:
        trainer: The Trainer.
        odb: Settings of the batches.
        length: ``row -> tokens``, or None.
        groups: Two gloo groups of all ranks, for the loader's exchange and for ours; None each in
            a world of one.
    Attributes:
        feed: This rank's batches.
        meter: Of the metrics.
        metrics: Those that wait to be logged.
        moves_rate: Whether the learning rate follows the samples.
    """

    def __init__(
        self, trainer: Any, odb: OdbArguments, length: Length | None, groups: tuple[Any, Any]
    ) -> None:
        args = trainer.args
        self.rank, self.world_size, self.group = args.process_index, args.world_size, groups[1]
        self.metrics: dict[str, float] = {}
        self.moves_rate = False
        self.resumed_from: int | None = None
        check_dataset(trainer.train_dataset)
        loader = make_loader(
            trainer, odb, length=length, shuffle=shuffles(trainer), group=groups[0]
        )
        epochs = None if args.max_steps > 0 else float(args.num_train_epochs)
        goal = Goal(
            rows=len(trainer.train_dataset),
            epochs=None if odb.sample_quota is not None else epochs,
            quota=odb.sample_quota,
        )
        accumulation = args.gradient_accumulation_steps
        self.feed = Feed(loader, accumulation=accumulation, goal=goal)
        self._join = odb.join

    def resume(self, folder: Path, trainer: Any) -> None:
        """Go on where a checkpoint was taken, on any number of ranks."""
        states, totals = checkpoint.read(folder)
        check_world_size(trainer, len(states))
        with explained():
            if len(states) != self.world_size:
                states = reshard_states(states, self.world_size)
        self.feed.resume(states[self.rank], share(totals, self.rank))
        self.resumed_from = int(folder.name.rpartition("-")[2])

    def begin(self, step: int) -> None:
        """The loop starts after ``step`` steps."""
        self.meter = Meter(self.feed, self.group, step)
        if self.feed.finished:
            logger.warning(
                "Nothing left to train: the run was finished at step %d; raise num_train_epochs "
                "or sample_quota to go on",
                step,
            )

    def save(self, folder: Path, *, writes: bool) -> None:
        """The data's part of a checkpoint; every rank must call this, one of them writes."""
        gathered = self._gather((self.feed.state, self.feed.totals))
        if writes:
            checkpoint.write(folder, [item[0] for item in gathered], [item[1] for item in gathered])
        self.wait()

    def wait(self) -> None:
        """Until all ranks have come here."""
        if self.group is not None:
            dist.barrier(group=self.group)

    def samples_per_second(self, seconds: float) -> float:
        """Of this call of ``train``; the Trainer takes it from numbers of steps."""
        samples = self.feed.totals.samples - self.meter.began.totals.samples
        return round(samples / max(seconds, 1e-9), 3)

    def finish(self, folder: str, step: int, *, writes: bool) -> Summary:
        """Write ``odb_summary.json``; every rank must call this, at the end of a good run.

        Raises:
            RuntimeError: More samples were trained on than there are.
        """
        totals: Totals = merge(self._gather(self.feed.current_totals()))
        began = self.meter.began
        wall_s = time.perf_counter() - began.time_s
        goal = self.feed.goal
        whole = goal.samples if goal.quota is None else None
        summary = Summary(
            samples_total=whole,
            samples_emitted=totals.samples,
            samples_dropped=totals.num_dropped,
            dropped_by_reason=totals.dropped,
            coverage=self._coverage(totals, whole),
            steps=step,
            idle_steps=totals.idle_steps,
            padding_ratio=totals.padding_ratio,
            real_tokens=totals.real_tokens,
            padded_tokens=totals.padded_tokens,
            real_tokens_per_s=self._real_tokens(totals, began.totals) / wall_s,
            wall_s=wall_s,
            world_size=self.world_size,
            resumed_from=self.resumed_from,
        )
        if writes:
            path = summary.write(folder)
            logger.info("%s; see %s", summary.line(), path)
        self.wait()  # whoever reads it after train() finds it, on every rank
        if self._join and summary.coverage.startswith("wrong"):
            raise RuntimeError(f"coverage is {summary.coverage}")
        return summary

    def _real_tokens(self, totals: Totals, before: Totals) -> int:
        """Of this call of ``train``; what was trained before it is whole where it resumed."""
        room: list[int] = self._gather(before.room)
        return totals.real_tokens - (before.tokens - sum(room))

    def _coverage(self, totals: Totals, whole: int | None) -> str:
        goal = self.feed.goal
        if goal.quota is not None or goal.epochs is None or not self.feed.finished:
            ended_by = "max_steps or a stop" if goal.quota is None else "sample_quota"
            return coverage(totals, whole, ended_by=ended_by)
        if goal.epochs != int(goal.epochs):
            return f"partial: {totals.samples} samples, ended by num_train_epochs={goal.epochs:g}"
        return coverage(totals, whole, ended_by="join=False")

    def _gather(self, value: Any) -> list[Any]:
        return [value] if self.group is None else gather(value, self.group)

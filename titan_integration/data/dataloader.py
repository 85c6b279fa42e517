"""``odb_loader`` in the place of a torchtitan dataloader."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from odb_nodes import (
    OdbLoader,
    Rounding,
    describe_state,
    pack_states,
    reshard_states,
)
from odb_nodes.types import OdbBatch, StepInfo
from titan_integration.data.batching import (
    count_pictures,
    count_sources,
    idle_batch,
    make_collate,
    make_loader,
    make_rounding,
    model_inputs,
)
from titan_integration.data.checks.cache import Checked
from titan_integration.data.checks.check import check_rows
from titan_integration.data.encoding.encoder import IGNORE_INDEX, Encoder
from titan_integration.data.encoding.tokenizer import check_size
from titan_integration.data.fingerprints import Inputs
from titan_integration.data.growth import EpochRows
from titan_integration.data.input_watch import InputWatch, without_lengths
from titan_integration.data.inputs.mixture import Mixture
from titan_integration.data.loader_config import LoaderConfig
from titan_integration.data.pictures.collate import IDLE
from titan_integration.data.saved import Saved, explained
from titan_integration.data.sources.index import SampleIndex
from titan_integration.data.totals import Load, Totals, merge, share
from titan_integration.errors import UserError
from titan_integration.process_groups import data_group, gather
from titan_integration.upstream import BaseDataLoader, HuggingFaceTokenizer

TitanBatch = tuple[dict[str, torch.Tensor], torch.Tensor]


class OdbDataLoader(BaseDataLoader):
    """Yields ``({"input": int64[B, L], "positions": int64[B, L]}, labels int64[B, L])``.

    All epochs come out of one iteration, which ends on the same batch on all ranks. The state is
    one blob, the same on all ranks, so that torchtitan can load it at any data-parallel degree.

    Attributes:
        samples: The samples of one epoch, dropped ones included.
        totals: Counts of what was delivered; of this rank where they differ between ranks.
        info: What the batch delivered last holds.
        sources: Number of the source of each of its tokens (-1: of none), ``int64[B, L]``; None
            where there is one source only.
        room: Tokens of that batch's count that are room for a black picture.
        exhausted: Whether no rank will get another batch in this run.
        shapes: Distinct shapes of this rank's batches since the process started.
    """

    STATE = "odb"
    TOTALS = "totals"
    loader: OdbLoader

    @dataclass(kw_only=True, slots=True)
    class Config(LoaderConfig):
        """See ``LoaderConfig``."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: HuggingFaceTokenizer,
        seq_len: int,
        **_: Any,
    ) -> None:
        self.config = config
        self.dp_rank, self.dp_world_size = dp_rank, dp_world_size
        self.rows = self._open_rows()
        encoding = config.data.encoding(max_len=seq_len, vision=config.vision)
        self.encoder = Encoder(tokenizer, encoding)
        self.group = data_group("state", dp_rank, dp_world_size)
        self.inputs: InputWatch | None = None  # for training rows that have a number
        self.use(None)
        self._state: dict[str, Any] | None = None  # after the latest delivery; None: before any
        self.totals = Totals()
        self.info: StepInfo | None = None
        self.sources: torch.Tensor | None = None
        self.room = 0
        self.exhausted = self._grown = False
        self.shapes: set[torch.Size] = set()
        self.load = Load()
        self._filler: dict[str, Any] | None = None

    def check(self) -> None:
        """Check tokenizer and rows, and count the samples that each row gives.

        All ranks together, before anything is loaded or read. Raises UserError, the same on all.
        """
        self.check_tokenizer()
        data = self.config.data
        if data.check:
            folder = self.config.check_folder
            self.use(
                check_rows(
                    self.rows,
                    self.encoder,
                    skip_errors=data.odb.on_error == "skip",
                    dp_rank=self.dp_rank,
                    dp_world_size=self.dp_world_size,
                    group=self.group,
                    folder=None if folder is None else Path(folder),
                )
            )

    def check_tokenizer(self) -> None:
        """Raise UserError if it has more tokens than the model."""
        check_size(self.encoder.tokenizer, self.config.vocab_size)

    def use(self, checked: Checked | None) -> None:
        """Take the samples that a check has counted; without one, a row is one sample."""
        self.checked = checked
        self.encoder.one_each = checked is None
        self.samples = SampleIndex(self.rows, None if checked is None else checked.counts)
        self.epoch_samples = EpochRows(self.samples)
        if hasattr(self, "loader"):
            self.loader.shutdown()  # two loaders cannot share a group
        self.loader = self._make_loader()

    def __iter__(self) -> Iterator[TitanBatch]:
        while not self.exhausted:
            with explained():
                batches = iter(self.loader)  # a loaded state is checked against rows and settings
            batch = next(batches, None)
            if batch is None:
                raise UserError("every row was left out, none could be trained on")
            while batch is not None:
                # Look ahead: the trainer must know the last batch while it trains on it. What is
                # saved meanwhile is the state of the batch just delivered.
                self._state = self.loader.state_dict()
                following = next(batches, None)
                if following is None:
                    self._state = self.loader.state_dict()  # of an epoch that has ended
                self._deliver(batch, is_last_of_epoch=following is None)
                yield self._to_titan(batch)
                batch = following
            if self._grown:
                self._renew_loader(self.totals.epochs_done)

    def filler(self) -> TitanBatch:
        """An IDLE batch, to fill up the accumulation that the data ends in."""
        assert self._filler is not None
        tensors = self._filler
        tokens = tensors["input_ids"]
        self.totals.padded_tokens += tokens.numel()
        self.totals.idle_steps += 1
        self._note_pictures(tensors, idle=True)
        return model_inputs(tensors, self._positions, self.config.vision), torch.full_like(
            tokens, IGNORE_INDEX
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks; they must call this together, on their main threads.

        Empty values before the first batch: torchtitan asks for the keys before it loads, and
        asking the loader itself would start its threads.
        """
        if self._state is None:
            return {self.STATE: b"", self.TOTALS: b""}
        states, totals = self._gather(self.totals)
        inputs = None if self.inputs is None else self.inputs.now
        past = self.epoch_samples.past
        saved = Saved(states=states, totals=totals, past_samples=past, inputs=inputs)
        return {self.STATE: pack_states(states), self.TOTALS: saved.to_bytes()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after a state's last batch, at this or another data-parallel degree."""
        if not state_dict.get(self.STATE):
            return
        with explained():
            self._load(Saved.read(state_dict[self.STATE], state_dict[self.TOTALS]))
        self._note_end()

    def _load(self, saved: Saved) -> None:
        epochs, past = saved.totals.epochs_done, saved.past_samples
        self.totals = share(saved.totals, self.dp_rank)
        self.epoch_samples.past = epochs * len(self.samples) if past is None else past
        states = saved.states
        self._state = states[0]
        if self._take_changes(saved.inputs, states[0]):
            return
        if len(states) != self.dp_world_size:
            states = reshard_states(states, self.dp_world_size)
        self._state = states[self.dp_rank]
        if self.inputs is not None and self.inputs.changed:
            self._state = without_lengths(self._state)
        self.loader.load_state_dict(self._state)

    @property
    def epochs_begun(self) -> int:
        """Whole epochs and the one in progress."""
        done = self.totals.epochs_done
        return done + (self._state is not None and describe_state(self._state)["epoch"] >= done)

    def note_inputs(self) -> None:
        """Take the fingerprints of what samples are made from; all ranks, after the check."""
        self.inputs = InputWatch(
            self.rows, self.encoder, self.config.data, rank=self.dp_rank, group=self.group
        )

    def _take_changes(self, then: Inputs | None, state: dict[str, Any]) -> bool:
        """Compare the data with that of the state, all ranks together.

        Returns:
            Whether the state is done with: its epoch has ended, and the next has more samples.
        Raises:
            UserError: They differ, and that was not accepted.
        """
        if self.inputs is None:
            return False
        told = describe_state(state)
        then_samples, ended = told["num_samples"], self.totals.epochs_done > told["epoch"]
        more = self.inputs.accept(then, then_samples, len(self.samples), told["epoch"])
        if more and not ended:
            self.epoch_samples.first(then_samples)
            self._renew_loader(None)
        elif more:
            self._renew_loader(told["epoch"] + 1)
        return more and ended

    def _renew_loader(self, epoch: int | None) -> None:
        self.loader.shutdown()
        self.loader = self._make_loader()
        if epoch is not None:
            self.loader.set_epoch(epoch)

    def merged_totals(self) -> Totals:
        """Counts of the run over all ranks; they must call this together."""
        return self._gather(self.current_totals())[1]

    def current_totals(self) -> Totals:
        """This rank's counts, with those that ``totals`` takes from an epoch when it ends."""
        if self._state is None:
            return self.totals
        progress = describe_state(self._state)
        unfinished = progress["epoch"] >= self.totals.epochs_done
        return self.totals.with_epoch(progress) if unfinished else self.totals

    def close(self) -> None:
        """End the background threads; harmless when ended already."""
        self.loader.shutdown()

    def _deliver(self, batch: OdbBatch, *, is_last_of_epoch: bool) -> None:
        self.info = batch.info
        labels = batch.tensors["labels"]
        self.totals.add(batch.info, labels.numel())
        self._note_sources(batch)
        self._note_pictures(batch.tensors, idle=batch.info.idle)
        self.shapes.add(labels.shape)
        self.load.add(batch.info)
        if self._filler is None or self.config.vision is None:
            self._filler = self._idle(batch.tensors)
        if is_last_of_epoch:
            self.totals = self.current_totals()
            self.totals.epochs_done = batch.info.epoch + 1
            self._grown = self.epoch_samples.end_epoch()  # before it is saved
        self._note_end()

    def _note_pictures(self, tensors: dict[str, Any], *, idle: bool) -> None:
        vision, flat = self.config.vision, self.config.flat_tower
        self.room = (
            0 if vision is None else count_pictures(self.totals, tensors, flat=flat, idle=idle)
        )

    def _note_sources(self, batch: OdbBatch) -> None:
        if len(self.rows.names) < 2:
            return
        views = () if batch.info.idle else batch.info.views
        self.sources = count_sources(
            self.totals,
            batch,
            self.rows,
            [self.rows.source_of(self.samples.locate(view.index)[0]) for view in views],
            positions=batch.tensors[self._positions],
            odb=self.config.data.odb,
        )

    def _note_end(self) -> None:
        data, totals = self.config.data, self.totals
        drained = data.num_epochs is not None and totals.epochs_done >= data.num_epochs
        filled = data.sample_quota is not None and totals.samples >= data.sample_quota
        self.exhausted = drained or filled

    def _idle(self, tensors: dict[str, Any]) -> dict[str, Any]:
        odb, vision = self.config.data.odb, self.config.vision
        if vision is not None:
            return make_collate(odb, self._rounding(), self.encoder)([IDLE])
        multiple = None if odb.shape == "fixed" else self.config.pad_to_multiple_of
        return idle_batch(tensors, self._positions, multiple)

    def _to_titan(self, batch: OdbBatch) -> TitanBatch:
        return model_inputs(batch.tensors, self._positions, self.config.vision), batch.tensors[
            "labels"
        ]

    def _gather(self, own: Totals) -> tuple[list[dict[str, Any]], Totals]:
        states, totals = [], []
        for item in gather((self._state, own), self.group):
            assert isinstance(item, tuple)
            states.append(item[0])
            totals.append(item[1])
        return states, merge(totals)

    def _open_rows(self) -> Mixture:
        inputs = self.config.data.inputs(pictures=self.config.vision is not None)
        return inputs.open(held_out=self.config.purpose == "held_out")

    def _rounding(self) -> Rounding:
        return make_rounding(
            self.config.data.odb,
            multiple=self.config.pad_to_multiple_of,
            max_len=self.encoder.encoding.max_len,
        )

    def _make_loader(self) -> OdbLoader:
        return make_loader(
            self.epoch_samples.now,
            self.encoder,
            self.config.data,
            rounding=self._rounding(),
            cost=self.config.cost,
            group=data_group(self.config.purpose, self.dp_rank, self.dp_world_size),
            rank=self.dp_rank,
            world_size=self.dp_world_size,
        )

    @property
    def _positions(self) -> str:
        return "position_ids" if self.config.data.odb.layout == "packed" else "positions"

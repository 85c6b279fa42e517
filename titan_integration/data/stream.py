"""A loader of rows that are read once, in order: larger than the disk, or without an end."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torchdata.nodes import BaseNode

from odb_nodes import AlignNode, GroupingNode, OdbLoader, StreamView, unpack_states
from odb_nodes.nodes.upstream import WatchedMapper
from odb_nodes.state.content import pack_value, unpack_value
from titan_integration.data.batching import make_budget, make_collate, make_layout
from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.formats.document import RowError
from titan_integration.data.inputs.mixture import Mixture
from titan_integration.data.inputs.stream import StreamedRow, open_stream
from titan_integration.errors import UserError
from titan_integration.process_groups import data_group

logger = logging.getLogger(__name__)
Samples = list[dict[str, Any]]
_SNAPSHOT = 32  # rows; a resume reads and encodes no more than these again


class OdbStreamLoader(OdbDataLoader):
    """As ``OdbDataLoader``, from a stream: no order is drawn, no row is known before it is read.

    A state holds the buffered samples themselves, so it is larger, and it fits only the number of
    ranks that it was saved by. Rows that give no sample are counted as "empty".
    """

    @dataclass(kw_only=True, slots=True)
    class Config(OdbDataLoader.Config):
        """The fields of the base."""

    def check(self) -> None:
        """The tokenizer only; nothing can be said of rows that nobody has read."""
        self.check_tokenizer()
        logger.info(
            "a stream is read in its own order and not checked before: rows that cannot be "
            "trained on are left out as they come"
        )

    def note_inputs(self) -> None:
        """Nothing: a stream is read once, and has no size to compare."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after a state's last batch, on as many ranks as saved it."""
        packed = state_dict.get(self.STATE)
        saved = len(unpack_states(packed)) if packed else self.dp_world_size
        if saved != self.dp_world_size:
            raise UserError(
                f"a stream can be resumed only on as many data-parallel ranks as saved it, "
                f"{saved}, got {self.dp_world_size}"
            )
        super().load_state_dict(state_dict)

    def _open_rows(self) -> Mixture:
        return Mixture(sources=[])  # none that could be asked for by its number

    def _make_loader(self) -> OdbLoader:
        data, odb = self.config.data, self.config.data.odb
        rows = open_stream(data.path, data.split, rank=self.dp_rank, world_size=self.dp_world_size)
        encoded: BaseNode[Samples | Exception] = WatchedMapper(
            StreamView(rows),
            EncodeRow(self.encoder),
            num_workers=odb.num_workers,
            method=odb.worker_method,
            snapshot_frequency=_SNAPSHOT,
        )
        source = SamplesOfRows(encoded, skip_errors=odb.on_error == "skip")
        groups = GroupingNode(
            source,
            make_budget(odb, self._rounding()),
            window=odb.window,
            overlong=odb.overlong,
            layout=make_layout(odb, self.config.cost),
        )
        align = AlignNode(
            groups,
            process_group=data_group(self.config.purpose, self.dp_rank, self.dp_world_size),
            join=odb.join,
            policy=odb.policy,
            idle=odb.idle,
            timeout_s=odb.timeout_s,
        )
        return OdbLoader(
            align,
            collate=make_collate(odb, self._rounding(), self.encoder),
            prefetch=odb.prefetch,
            pin_memory=torch.cuda.is_available(),
        )


class EncodeRow:
    """Turns a row into all of its samples, or into the error that says why it has none.

    Works in threads and worker processes.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def __call__(self, item: StreamedRow) -> Samples | Exception:
        """Errors are returned: what to do with them is decided in the order of the rows."""
        if item.error is not None:
            return UserError(item.error)
        try:
            plan = self._encoder.plan(item.row)
            return [self._encoder.labelled(part) for part in self._encoder.tokenize(plan.parts)]
        except RowError as error:
            error.args = (f"{item.place}: {error}",)
            return error


class SamplesOfRows(BaseNode[dict[str, Any]]):
    """Yields the samples of one row after the other; one without tokens for a row without any.

    Args:
        source: Yields, for each row, its samples or why it has none.
        skip_errors: Leave rows out that cannot be read, instead of raising.
    """

    SOURCE_KEY = "source"
    READY_KEY = "ready"

    def __init__(self, source: BaseNode[Samples | Exception], *, skip_errors: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source
        self._skip_errors = skip_errors
        self._ready: Samples = []
        self._told: set[str] = set()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is None:
            self.source.reset(None)
            self._ready = []
            return
        self.source.reset(initial_state[self.SOURCE_KEY])
        self._ready = unpack_value(initial_state[self.READY_KEY], "the samples of a row")

    def next(self) -> dict[str, Any]:
        if not self._ready:
            found = next(self.source)
            self._ready = self._excused(found) if isinstance(found, Exception) else list(found)
        return self._ready.pop(0)

    def get_state(self) -> dict[str, Any]:
        return {
            self.SOURCE_KEY: self.source.state_dict(),
            self.READY_KEY: pack_value(self._ready, "the samples of a row"),
        }

    def _excused(self, error: Exception) -> Samples:
        """An empty sample, which the window drops and counts; the first of a kind is told of."""
        unusable = type(error) is RowError
        if not unusable and not self._skip_errors:
            raise UserError(str(error)) from error
        kind = error.reason if isinstance(error, RowError) else type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("left out: %s; others like it are only counted", error)
        return [{"input_ids": [], "labels": []}]

"""Nodes: the collate step, and the root of a pipeline, which raises errors as they were raised."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.nodes.align_node import AlignNode
from odb_nodes.nodes.upstream import (
    BaseNode,
    Mapper,
    PinMemory,
    Prefetcher,
    join_threads,
    readers,
    state_around,
    stop_reading,
)
from odb_nodes.samples.user_code import call_user_code
from odb_nodes.state.description import find_align_state
from odb_nodes.types import AlignedGroup, OdbBatch

logger = logging.getLogger(__name__)
Collate = Callable[[list[Mapping[str, Any]]], Any]
_REPORT_S = 5.0  # longest delay of an error, for the other ranks to hear of it


class CollateStep:
    """Collates one aligned group; the info goes along. Tells the other ranks if that raises."""

    def __init__(self, collate: Collate, align: AlignNode) -> None:
        self._collate = collate
        self._align = align
        self._budget: TokenBudget = align.source.budget
        self._warned = False

    def __call__(self, group: AlignedGroup) -> OdbBatch:
        indices = [sample.view.index for sample in group.samples]
        where = f"while collating dataset[i] for i in {indices}"
        try:
            data = [sample.data for sample in group.samples]
            batch = OdbBatch(call_user_code(self._collate, data, where=where), group.info)
        except BaseException as error:
            self._align.exchange.report_failure(error)
            raise
        self._warn_above_budget(batch, len(group.samples))
        return batch

    def _warn_above_budget(self, batch: OdbBatch, num_samples: int) -> None:
        """Say once that the collate pads to more than the budget allows."""
        if self._warned or num_samples < 2 or not isinstance(batch.tensors, Mapping):
            return
        ids = batch.tensors.get("input_ids")
        size = ids.numel() if isinstance(ids, torch.Tensor) else 0
        if size > self._budget.max_tokens:
            self._warned = True
            logger.warning(
                "the collate makes a batch of %d tokens, over the token budget of %d: give the "
                "budget the rounding of the collate, TokenBudget(%d, rounding=...)",
                size,
                self._budget.max_tokens,
                self._budget.max_tokens,
            )


class PipelineRoot(BaseNode[OdbBatch]):
    """Raises errors as they were raised in the background thread.

    A thread hands its error over as text in a new exception. Errors that the ``AlignNode`` did
    not see (a collate that raises) are reported to the other ranks here. Its state is that of the
    ``AlignNode``, found in and put back into the states of the nodes between.
    """

    def __init__(
        self, align: AlignNode, *, collate: Collate, prefetch: int, pin_memory: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        node: BaseNode[OdbBatch] = Mapper(align, CollateStep(collate, align))
        if prefetch:
            node = Prefetcher(node, prefetch_factor=prefetch)
        if pin_memory:
            node = PinMemory(node)
        self.source = node
        self._align = align

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        background = self.background()
        stop_reading(background)
        self._align.leave()
        join_threads(background)  # a straggler would take from the next pass
        state = initial_state
        self.source.reset(None if state is None else state_around(self.source, self._align, state))

    def next(self) -> OdbBatch:
        try:
            batch: OdbBatch = next(self.source)
            return batch
        except StopIteration:
            raise
        except Exception as error:
            exchange = self._align.exchange
            exchange.report_failure(error, wait_s=_REPORT_S)  # the process may end after this
            raise exchange.failure or error from None

    def get_state(self) -> dict[str, Any]:
        return find_align_state(self.source.state_dict())

    def background(self) -> list[Any]:
        """Torchdata's iterators that read the ``AlignNode`` in a thread."""
        return readers(self.source, self._align)

    def stop_reading(self) -> None:
        """Let no thread open a further round."""
        stop_reading(self.background())

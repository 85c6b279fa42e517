"""The usual pipeline in one call."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torchdata.nodes import BaseNode, Loader, Mapper, PinMemory, Prefetcher

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.layouts import find_layout
from odb_nodes.nodes.align_node import AlignNode
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.nodes.sample_mapper import SampleMapper
from odb_nodes.nodes.sampler_view import SamplerView
from odb_nodes.nodes.upstream import abandon, stop
from odb_nodes.pack import Shape, collate_for
from odb_nodes.protocol.exchange import Exchange
from odb_nodes.state.description import align_state, copy_plain, find_align_state
from odb_nodes.types import AlignedGroup, OdbBatch

Collate = Callable[[list[Mapping[str, Any]]], Any]
_REPORT_S = 5.0  # longest delay of an error, for the other ranks to hear of it


class OdbLoader(Loader[OdbBatch]):
    """A ``torchdata.nodes.Loader`` over an ``AlignNode``, yielding ``OdbBatch``.

    Every ``iter()`` without a loaded state starts the next epoch. The state is that of the
    ``AlignNode`` alone, so prefetching, pinning and collate may differ when it is loaded. Use it
    as a context manager, or call ``shutdown``, to end its threads and worker processes early.

    Args:
        align: The aligned groups.
        collate: ``list of data -> tensors``.
        prefetch: Batches prepared ahead in a thread; 0 for none.
        pin_memory: Copy tensors into pinned memory.
        restart_on_stop_iteration: As in torchdata: iterating from a state of the end of an epoch
            gives the next epoch, else nothing.
    """

    def __init__(
        self,
        align: AlignNode,
        *,
        collate: Collate,
        prefetch: int = 2,
        pin_memory: bool = False,
        restart_on_stop_iteration: bool = True,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch must be at least 0, got {prefetch}")
        self.align = align
        node: BaseNode[OdbBatch] = Mapper(align, _CollateStep(collate, align.exchange))
        if prefetch:
            node = Prefetcher(node, prefetch_factor=prefetch)
        if pin_memory:
            node = PinMemory(node)
        self._pipeline_root = _PipelineRoot(node, align)
        super().__init__(self._pipeline_root, restart_on_stop_iteration)
        self._finalizer = weakref.finalize(self, abandon, self.root)

    def __iter__(self) -> Iterator[OdbBatch]:
        iterator = super().__iter__()  # type: ignore[no-untyped-call]
        if iterator._cached_item is None:
            # Torchdata 0.11 keeps the state it cached while looking for a next item, also after it
            # restarted at the end of an epoch; every later state would be that one.
            iterator._cached_state_dict = None
        return iterator  # type: ignore[no-any-return]

    def __enter__(self) -> "OdbLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch returned last: plain values, see docs/state.md."""
        return find_align_state(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume here at the next ``iter()``; the state must be of this rank and world size."""
        state = {"root": copy_plain(align_state(state_dict)), "num_yielded": 0}
        super().load_state_dict(state)
        # Torchdata's next iter() would be the one it made for an earlier state_dict(), unloaded.
        self._iter_for_state_dict = False

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next ``iter()``, unless a state is loaded: that knows its own."""
        view = self.align.source.view
        if not hasattr(view, "set_epoch"):
            raise ValueError("set_epoch needs a SamplerView or a StreamView at the source")
        view.set_epoch(epoch)

    def exchange_stats(self) -> dict[str, float]:
        """Of this rank since construction: payload "bytes", "rounds", and "wait_s" seconds."""
        stats = self.align.transport.stats
        return {"bytes": stats.bytes, "rounds": stats.rounds, "wait_s": stats.wait_s}

    def fill(self) -> tuple[int, int]:
        """Samples in the window now, and its size."""
        return len(self.align.source.window), self.align.source.window_size

    def shutdown(self) -> None:
        """End all threads and worker processes, in a few seconds at most. Can be called twice."""
        for it in self._pipeline_root.background():
            it._stop_event.set()  # no further round is opened
        self.align.shutdown()
        stop(self.root)


class _CollateStep:
    """Collates one aligned group; the info goes along. Tells the other ranks if that raises."""

    def __init__(self, collate: Collate, exchange: Exchange) -> None:
        self._collate = collate
        self._exchange = exchange

    def __call__(self, group: AlignedGroup) -> OdbBatch:
        try:
            return OdbBatch(self._collate([sample.data for sample in group.samples]), group.info)
        except Exception as error:
            indices = [sample.view.index for sample in group.samples]
            error.add_note(f"while collating dataset[i] for i in {indices}")
            self._exchange.report_failure(error)
            raise


class _PipelineRoot(BaseNode[OdbBatch]):
    """Root of the pipeline: raises errors as they were raised in the background thread.

    A thread hands its error over as text in a new exception. Errors that the ``AlignNode`` did
    not see (a collate that raises) are reported to the other ranks here. Its state is that of the
    ``AlignNode``, found in and put back into the states of the nodes between.
    """

    def __init__(self, source: BaseNode[OdbBatch], align: AlignNode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source
        self._align = align

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        background = self.background()
        for it in background:
            it._stop_event.set()
        self._align.leave()
        for it in background:
            it._thread.join()  # a straggler would take from the next pass
        self.source.reset(None if initial_state is None else self._wrap(initial_state))

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
        found = []
        node: Any = self.source
        while node is not self._align:
            it = getattr(node, "_it", None)
            found += [it] if hasattr(it, "_stop_event") else []
            node = node.source
        return found

    def _wrap(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state of the ``AlignNode`` as the state of the nodes around it."""
        nodes = []
        node: Any = self.source
        while node is not self._align:
            nodes.append(node)
            node = node.source
        for node in reversed(nodes):
            if isinstance(node, Prefetcher | PinMemory):
                state = {"snapshot": state, "steps_since_snapshot": 0}
            else:
                state = {node.IT_STATE_KEY: {"source": state}}
        return state


def odb_loader(
    dataset: Any,
    transform: Callable[..., Any] | None = None,
    *,
    token_budget: int | TokenBudget,
    layout: str | Layout = "padded",
    rows: int | None = None,
    shape: Shape | None = None,
    cost: tuple[float, float] | None = None,
    window: int = 1024,
    length: Callable[[Any], int] | None = None,
    num_workers: int = 0,
    worker_method: Literal["thread", "process"] = "thread",
    multiprocessing_context: str | None = None,
    process_group: Any = None,
    rank: int = 0,
    world_size: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    join: bool = True,
    sample_quota: int | None = None,
    policy: Literal["sliding", "tumbling"] = "sliding",
    steps_per_round: int | None = None,
    idle: Literal["emit", "skip"] = "emit",
    collate: Collate | None = None,
    prefetch: int = 2,
    pin_memory: bool = False,
    rng_seed: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overlong: Literal["alone", "drop", "raise"] = "alone",
    timeout_s: float = 600.0,
) -> OdbLoader:
    """Batches of at most ``token_budget`` tokens, the same number of steps on every rank.

    Args:
        dataset: Anything with ``__len__`` and ``__getitem__``.
        transform: ``raw -> {"input_ids": ..., "labels": ...}``, or None to drop the sample.
        token_budget: Tokens per rank and step, in their layout.
        layout: "padded", samples of like length padded to the longest; "packed", rows of whole
            documents for attention that knows documents; or a ``Padded`` or ``Packed``.
        rows: Rows of a packed step, 1 by default; each has ``token_budget // rows`` tokens.
        shape: Of packed steps, "dynamic" (default) or "fixed"; see ``PackCollate``, which is the
            default ``collate`` of packed steps.
        cost: ``(a, b)``: a document of L tokens costs ``a * L + b * L * L``. Packed groups are
            then cut to one cost, so that no rank waits for another.
        window: Samples buffered a rank; more is closer to the fewest steps.
        length: ``data -> tokens``; default ``len(data["input_ids"])``.
        num_workers: Workers for dataset and transform; 0 maps in a background thread.
        worker_method: "thread", for work that releases the interpreter lock (reading files, PIL,
            NumPy, ``tokenizers`` by ``encode_batch``), or "process", for Python code and
            ``tokenizers`` by ``encode``, which hold it.
        multiprocessing_context: "fork", "spawn" or "forkserver" for processes.
        process_group: A gloo group of exactly the data-parallel ranks that nothing else uses,
            ``torch.distributed.new_group(backend="gloo")``; needed if ``world_size`` is over 1.
        rank: Data-parallel rank.
        world_size: Data-parallel ranks.
        shuffle: A new order every epoch.
        seed: Chooses the orders; must be equal on all ranks.
        join: Emit every sample of the epoch; see ``AlignNode``.
        sample_quota: End after this many samples over all ranks; see ``AlignNode``.
        policy: "sliding" or "tumbling"; see ``AlignNode``.
        steps_per_round: Most steps between two exchanges.
        idle: "emit" or "skip" steps on which this rank has nothing.
        collate: ``list of data -> tensors``; default ``PadCollate()``, for packed steps
            ``PackCollate(...)``.
        prefetch: Batches prepared ahead.
        pin_memory: Copy tensors into pinned memory.
        rng_seed: Gives ``transform`` a generator of its own for every sample; see
            ``SampleMapper``.
        on_error: "raise" or "skip" samples whose dataset or transform raises.
        overlong: What to do with a sample over the budget; see ``GroupingNode``.
        timeout_s: Longest wait for the slowest rank in one exchange.
    Raises:
        ValueError: An argument out of range, or a group that does not fit rank and world size.
    """
    if world_size > 1 and process_group is None:
        raise ValueError(
            f"world_size={world_size} needs process_group: "
            'pass torch.distributed.new_group(backend="gloo")'
        )
    budget = TokenBudget(token_budget) if isinstance(token_budget, int) else token_budget
    how = find_layout(layout, rows=rows, cost=None if cost is None else Cost(*cost))
    if shape == "fixed" and overlong == "alone":
        raise ValueError(
            'shape="fixed" has no room for a sample longer than a row: use overlong="drop" or '
            '"raise", or shape="dynamic"'
        )
    if collate is not None and shape is not None:
        raise ValueError("shape is of the default collate: leave it out, or leave collate out")
    collate = collate or collate_for(how, budget, shape)
    view = SamplerView(len(dataset), rank=rank, world_size=world_size, shuffle=shuffle, seed=seed)
    samples = SampleMapper(
        view,
        dataset,
        transform,
        length=length,
        num_workers=num_workers,
        method=worker_method,
        rng_seed=rng_seed,
        on_error=on_error,
        multiprocessing_context=multiprocessing_context,
        # Rounds take samples in bursts; reading ahead keeps the workers busy between them.
        read_ahead=max(1, window // 2) if prefetch else 0,
    )
    groups = GroupingNode(samples, budget, window=window, overlong=overlong, layout=how)
    align = AlignNode(
        groups,
        process_group=process_group,
        join=join,
        policy=policy,
        steps_per_round=steps_per_round,
        sample_quota=sample_quota,
        idle=idle,
        timeout_s=timeout_s,
    )
    transport = align.transport
    if (transport.rank, transport.world_size) != (rank, world_size):
        raise ValueError(
            f"process_group has rank {transport.rank} of {transport.world_size}, "
            f"got rank={rank}, world_size={world_size}"
        )
    return OdbLoader(align, collate=collate, prefetch=prefetch, pin_memory=pin_memory)

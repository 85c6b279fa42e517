"""The usual pipeline in one call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from odb_nodes.arguments import integer
from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.layouts import find_layout
from odb_nodes.loader import OdbLoader
from odb_nodes.nodes.align_node import AlignNode
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.nodes.pipeline import Collate
from odb_nodes.nodes.sample_mapper import SampleMapper
from odb_nodes.nodes.sampler_view import SamplerView
from odb_nodes.nodes.stream_source import split_stream, stream_source
from odb_nodes.nodes.upstream import BaseNode
from odb_nodes.pack import Shape, collate_for
from odb_nodes.protocol.transport import SingleTransport, Transport, make_transport


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
    transport: Transport | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    dataset_id: str | None = None,
    split: Literal["auto", "every", "none"] = "auto",
    join: bool = True,
    sample_quota: int | None = None,
    policy: str = "sliding",
    steps_per_round: int | None = None,
    idle: Literal["emit", "skip"] = "emit",
    filler: Mapping[str, Any] | None = None,
    collate: Collate | None = None,
    prefetch: int = 2,
    pin_memory: bool = False,
    restart: bool = True,
    rng_seed: int | None = None,
    persistent_workers: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    overlong: Literal["alone", "drop", "raise"] = "alone",
    timeout_s: float = 600.0,
) -> OdbLoader:
    """Batches of at most ``token_budget`` tokens, the same number of steps on every rank.

    Args:
        dataset: Map-style (``__len__`` and ``__getitem__``), an iterable, or a torchdata node.
        transform: ``raw -> {"input_ids": ..., "labels": ...}``, or None to drop the sample.
        token_budget: Tokens per rank and step, in their layout.
        layout: "padded", samples of like length padded to the longest; "packed", rows of whole
            documents for attention that knows documents; or a ``Padded`` or ``Packed``.
        rows: Rows of a packed step, 1 by default; each has ``token_budget // rows`` tokens.
        shape: Of packed steps, "dynamic" (default) or "fixed"; see ``PackCollate``, which is the
            default ``collate`` of packed steps.
        cost: ``(a, b)``: a document of L tokens costs ``a * L + b * L * L``. Packed groups are
            then cut to one cost, so that no rank waits for another.
        window: Samples buffered per rank; more is closer to the fewest steps.
        length: ``data -> tokens``; default ``len(data["input_ids"])``.
        num_workers: Workers for dataset and transform; 0 maps in a background thread.
        worker_method: "thread", for work that releases the interpreter lock (reading files, PIL,
            NumPy, ``tokenizers`` by ``encode_batch``), or "process", for Python code and
            ``tokenizers`` by ``encode``, which hold it.
        multiprocessing_context: "fork", "spawn" or "forkserver" for processes.
        process_group: A gloo group of exactly the data-parallel ranks that nothing else uses,
            ``torch.distributed.new_group(backend="gloo")``; needed for several ranks.
        transport: Collectives of another kind, instead of ``process_group``.
        rank: Data-parallel rank; by default that in the group or transport.
        world_size: Data-parallel ranks; by default those of the group or transport. 1 says that
            this process reads everything, whatever others do.
        shuffle: A new order every epoch; else the same batches in the same order every epoch.
            A stream comes in its own order.
        seed: Chooses the orders; must be equal on all ranks.
        dataset_id: Names the data; a state of data by another name is refused.
        split: How several ranks share a stream: "every" takes every n-th item, "none" says it is
            this rank's own already, "auto" splits what can split itself (Hugging Face streams).
        join: Emit every sample of the epoch; see ``Alignment``.
        sample_quota: End after this many samples over all ranks; see ``Alignment``.
        policy: "sliding" or "tumbling"; see ``Alignment``.
        steps_per_round: Most steps between two exchanges.
        idle: "emit" or "skip" steps on which this rank has nothing.
        filler: Data of a sample to be masked on IDLE steps; see ``AlignNode``.
        collate: ``list of data -> tensors``; default ``PadCollate()``, for packed steps
            ``PackCollate(...)``.
        prefetch: Batches prepared ahead.
        pin_memory: Copy tensors into pinned memory.
        restart: Iterating from a state of the end of an epoch gives the next epoch, else nothing.
        rng_seed: Gives ``transform`` a generator of its own for every sample; see
            ``SampleMapper``.
        persistent_workers: Keep worker processes over epochs and resumes; see ``SampleMapper``.
        on_error: "raise" or "skip" samples whose dataset or transform raises.
        overlong: What to do with a sample over the budget; see ``GroupingNode``.
        timeout_s: Longest wait for the slowest rank in one exchange, and for one sample before a
            warning names it.
    Raises:
        ValueError: An argument out of range, or a group that does not fit rank and world size.
    """
    budget = (
        token_budget
        if isinstance(token_budget, TokenBudget)
        else TokenBudget(integer("token_budget", token_budget, least=1))
    )
    how = find_layout(layout, rows=rows, cost=None if cost is None else Cost(*cost))
    collate = _collate(collate, how, budget, shape, overlong)
    transport = _transport(process_group, transport, rank, world_size, timeout_s)
    work = _Work(
        transform=transform,
        length=length,
        num_workers=num_workers,
        method=worker_method,
        multiprocessing_context=multiprocessing_context,
        persistent_workers=persistent_workers,
        rng_seed=rng_seed,
        on_error=on_error,
        # Rounds take samples in bursts; reading ahead keeps the workers busy between them.
        read_ahead=max(1, integer("window", window, least=1) // 2) if prefetch else 0,
        timeout_s=timeout_s,
    )
    source: BaseNode[Any]
    if _is_map_style(dataset):
        view = SamplerView(
            len(dataset),
            rank=transport.rank,
            world_size=transport.world_size,
            shuffle=shuffle,
            seed=seed,
            dataset_id=dataset_id,
        )
        source = SampleMapper(view, dataset, **_arguments(work))
    else:
        source = _stream(dataset, transport, split, work, dataset_id)
    groups = GroupingNode(
        source, budget, window=window, length=length, overlong=overlong, layout=how
    )
    align = AlignNode(
        groups,
        transport=transport,
        timeout_s=timeout_s,
        filler=filler,
        join=join,
        policy=policy,
        steps_per_round=steps_per_round,
        sample_quota=sample_quota,
        idle=idle,
    )
    return OdbLoader(
        align,
        collate=collate,
        prefetch=prefetch,
        pin_memory=pin_memory,
        restart_on_stop_iteration=restart,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """How samples are made of a dataset's rows; arguments of ``SampleMapper`` of these names."""

    transform: Callable[..., Any] | None
    length: Callable[[Any], int] | None
    num_workers: int
    method: Literal["thread", "process"]
    multiprocessing_context: str | None
    persistent_workers: bool
    rng_seed: int | None
    on_error: Literal["raise", "skip"]
    read_ahead: int
    timeout_s: float


def _arguments(work: _Work) -> dict[str, Any]:
    return {field.name: getattr(work, field.name) for field in fields(work)}


def _collate(
    collate: Collate | None, layout: Layout, budget: TokenBudget, shape: Shape | None, overlong: str
) -> Collate:
    if shape == "fixed" and overlong == "alone":
        raise ValueError(
            'shape="fixed" has no room for a sample longer than a row: use overlong="drop" or '
            '"raise", or shape="dynamic"'
        )
    if collate is not None and shape is not None:
        raise ValueError("shape is of the default collate: leave it out, or leave collate out")
    return collate or collate_for(layout, budget, shape)


def _transport(
    group: Any,
    transport: Transport | None,
    rank: int | None,
    world_size: int | None,
    timeout_s: float,
) -> Transport:
    """The transport of this loader; rank and world size must be those in it, where given."""
    if world_size is not None:
        integer("world_size", world_size, least=1)
    if rank is not None:
        integer("rank", rank, least=0, below=world_size)
    if group is None and transport is None:
        if world_size not in (None, 1) or rank not in (None, 0):
            raise ValueError(
                f"rank={rank}, world_size={world_size} needs process_group: "
                'pass torch.distributed.new_group(backend="gloo")'
            )
        if world_size == 1:
            return SingleTransport()
    found = make_transport(group, timeout_s, transport)
    for name, given, here in (
        ("rank", rank, found.rank),
        ("world_size", world_size, found.world_size),
    ):
        if given not in (None, here):
            raise ValueError(
                f"process_group has rank {found.rank} of {found.world_size}, got {name}={given}"
            )
    return found


def _is_map_style(dataset: Any) -> bool:
    """Whether samples are had by index; raises ``ValueError`` for what is no dataset at all."""
    if isinstance(dataset, str | bytes | Mapping):
        raise ValueError(
            "dataset must be map-style, an iterable or a torchdata node, got a "
            f"{type(dataset).__name__}: pass what is in it, e.g. one split of a DatasetDict"
        )
    if isinstance(dataset, BaseNode) or "Iterable" in type(dataset).__name__:
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _stream(
    dataset: Any, transport: Transport, split: Any, work: _Work, dataset_id: str | None
) -> BaseNode[Any]:
    """The items of an iterable or a node as samples."""
    if work.rng_seed is not None:
        raise ValueError(
            "rng_seed needs a map-style dataset: an item of a stream has no fixed position"
        )
    if not isinstance(dataset, BaseNode):
        if not hasattr(dataset, "__iter__"):
            raise ValueError(
                "dataset must have __len__ and __getitem__, or __iter__, or be a torchdata node, "
                f"got {type(dataset).__name__}"
            )
        dataset = split_stream(dataset, transport.rank, transport.world_size, split)
    return stream_source(
        dataset,
        work.transform,
        num_workers=work.num_workers,
        method=work.method,
        multiprocessing_context=work.multiprocessing_context,
        on_error=work.on_error,
        dataset_id=dataset_id,
    )

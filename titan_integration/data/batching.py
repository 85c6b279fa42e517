"""The data section's batching as arguments of ``odb_nodes``, for rows by number and for streams."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from odb_nodes import (
    Cost,
    OdbLoader,
    PackCollate,
    Packed,
    PadCollate,
    Padded,
    Rounding,
    TokenBudget,
    odb_loader,
)
from odb_nodes.types import OdbBatch
from odb_nodes.vision import vision_length
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.inputs.mixture import Mixture
from titan_integration.data.inputs.origin import count_by_source, source_map
from titan_integration.data.pictures.collate import (
    IDLE,
    NUM_PICTURES,
    NUM_TEXTS,
    PictureCollate,
)
from titan_integration.data.pictures.vision import Vision
from titan_integration.data.totals import Totals

Collate = Callable[[Sequence[Any]], dict[str, Any]]


def make_rounding(odb: OdbConfig, *, multiple: int, max_len: int) -> Rounding:
    """Lengths that batches are padded to.

    Args:
        odb: The section.
        multiple: What the model needs, in tokens.
        max_len: Longest sample. A padded row may be as long; a packed one, as the budget allows.
    """
    longest = odb.token_budget // odb.rows if odb.layout == "packed" else max_len
    return Rounding(
        multiple=multiple,
        per_doubling=odb.shape_buckets,
        longest=-(-longest // multiple) * multiple,
    )


def make_budget(odb: OdbConfig, rounding: Rounding) -> TokenBudget:
    """Limits of a batch; a padded row counts as long as it will be padded to."""
    return TokenBudget(odb.token_budget, rounding=None if odb.layout == "packed" else rounding)


def make_layout(odb: OdbConfig, cost: tuple[float, float]) -> Packed | Padded:
    """Which samples form a microbatch.

    Args:
        odb: Whose layout is decided.
        cost: What the model makes of a token, and of a pair of tokens of one sample.
    """
    if odb.layout == "packed":
        return Packed(rows=odb.rows, cost=Cost(*cost))
    return Padded(cost=Cost(*cost))


def make_collate(odb: OdbConfig, rounding: Rounding, encoder: Encoder) -> Collate:
    """Samples to tensors.

    Args:
        odb: Whose layout is decided.
        rounding: Of the length of rows.
        encoder: Of the samples.
    """
    text = _text_collate(odb, rounding, encoder.encoding.max_len)
    if encoder.encoding.vision is None:
        return text
    return PictureCollate(text, encoder, odb.shape_buckets)


def _text_collate(odb: OdbConfig, rounding: Rounding, max_len: int) -> PadCollate | PackCollate:
    """``max_len`` is of the longest sample: models check the positions of padding, too."""
    if odb.layout != "packed":
        return PadCollate(pad_to_multiple_of=rounding, positions=True)
    return PackCollate(
        odb.token_budget // odb.rows,
        rows=odb.rows,
        shape=odb.shape,
        pad_to_multiple_of=rounding,
        longest_padding=max_len,
    )


def make_loader(
    samples: Any,
    encoder: Encoder,
    data: DataConfig,
    *,
    rounding: Rounding,
    cost: tuple[float, float],
    group: Any,
    rank: int,
    world_size: int,
) -> OdbLoader:
    """``odb_loader`` on samples by number, as the section says."""
    odb, pictures = data.odb, encoder.encoding.vision is not None
    return odb_loader(
        samples,
        encoder,
        token_budget=make_budget(odb, rounding),
        layout=make_layout(odb, cost),
        window=odb.window,
        length=vision_length if pictures else None,
        filler=IDLE if pictures else None,
        num_workers=odb.num_workers,
        worker_method=odb.worker_method,
        process_group=group,
        rank=rank,
        world_size=world_size,
        shuffle=data.shuffle,
        seed=data.seed,
        join=odb.join,
        policy=odb.policy,
        idle=odb.idle,
        overlong=odb.overlong,
        collate=make_collate(odb, rounding, encoder),
        prefetch=odb.prefetch,
        pin_memory=torch.cuda.is_available(),
        on_error=odb.on_error,
        timeout_s=odb.timeout_s,
    )


def idle_batch(
    tensors: dict[str, torch.Tensor], positions: str, multiple: int | None
) -> dict[str, Any]:
    """An IDLE batch without its labels: as few tokens as can be, where shapes may change.

    Args:
        tensors: Of a batch.
        positions: The key of its positions.
        multiple: What lengths are multiples of; None keeps the shape of the batch.
    """
    tokens = tensors["input_ids"]
    if multiple is None:
        return {"input_ids": tokens, positions: tensors[positions]}
    tokens = tokens[:1, :multiple].clone()
    return {"input_ids": tokens, positions: torch.arange(tokens.shape[1]).expand_as(tokens)}


def count_pictures(totals: Totals, batch: Mapping[str, Any], *, flat: bool, idle: bool) -> int:
    """Count what the tower gets of a batch; returns the batch's room for black pictures.

    Args:
        totals: To add to.
        batch: As ``PictureCollate`` gives it.
        flat: Whether the tower takes pictures end to end; else they are padded to the largest.
        idle: Whether it holds none of the samples.
    """
    number, grids = batch[NUM_PICTURES], batch["grid_thw"]
    sizes = grids.prod(-1)
    room: int = 0 if idle else batch[NUM_TEXTS]
    totals.add_pictures(
        pictures=number,
        patches=int(sizes.sum()) if number else 0,
        padded_patches=len(batch["patches"]) if flat else len(sizes) * int(sizes.max()),
        room=room,
    )
    return room


def model_inputs(
    tensors: Mapping[str, Any], positions: str, vision: Vision | None
) -> dict[str, torch.Tensor]:
    """What of a batch the trainer gets, by the names that torchtitan's models have for it.

    Args:
        tensors: The batch.
        positions: Its key for positions.
        vision: How the model takes pictures, if it does.
    """
    inputs = {"input": tensors["input_ids"], "positions": tensors[positions]}
    if vision is not None:
        inputs |= {name: tensors[name] for name in ("patches", "grid_thw")}
        if vision.has_grid_positions:
            inputs["mrope_positions"] = tensors["positions3"]
    return inputs


def count_sources(
    totals: Totals,
    batch: OdbBatch,
    rows: Mixture,
    numbers: Sequence[int],
    *,
    positions: torch.Tensor,
    odb: OdbConfig,
) -> torch.Tensor:
    """Count what a batch holds of each source; returns the source of each token, ``int64[B, L]``.

    Args:
        totals: To add to.
        batch: As delivered.
        rows: Of all sources.
        numbers: The source of each of the batch's samples.
        positions: Of the batch.
        odb: Whose layout is decided.
    """
    layout = odb.layout or "padded"
    sources = source_map(list(numbers), positions, layout=layout, rows=odb.rows)
    loss_tokens = count_by_source(sources, batch.tensors["labels"], len(rows.names))
    for number, name in enumerate(rows.names):
        totals.add_source(name, list(numbers).count(number), loss_tokens[number])
    return sources

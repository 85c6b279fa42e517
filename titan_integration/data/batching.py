"""The data section's batching as arguments of ``odb_nodes``, for rows by number and for streams."""

from collections.abc import Callable, Sequence
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
from odb_nodes.vision import vision_length
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.pictures.collate import IDLE, PictureCollate

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

"""The data section's batching as arguments of ``odb_nodes``, for rows by number and for streams."""

from collections.abc import Mapping, Sequence
from typing import Any

from odb_nodes import Cost, PackCollate, Packed, PadCollate, Padded, Rounding, TokenBudget
from titan_integration.data.config import OdbConfig


def make_rounding(odb: OdbConfig, *, multiple: int, max_len: int) -> Rounding:
    """Lengths that batches are padded to.

    Args:
        odb: The section.
        multiple: What the model needs, in tokens.
        max_len: Longest sample. A padded row may be as long; a packed one, as its budget.
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
    """Which samples form a batch; ``cost`` is of a token, and of a pair of tokens of one sample."""
    if odb.layout == "packed":
        return Packed(rows=odb.rows, cost=Cost(*cost))
    return Padded(cost=Cost(*cost))


def make_collate(odb: OdbConfig, rounding: Rounding, max_len: int) -> PadCollate | PackCollate:
    """Samples to tensors, with "positions"; models check those of padding, too."""
    if odb.layout != "packed":
        return PadCollate(pad_to_multiple_of=rounding, positions=True)
    return _Pack(
        odb.token_budget // odb.rows,
        rows=odb.rows,
        shape=odb.shape,
        pad_to_multiple_of=rounding,
        longest_padding=max_len,
    )


class _Pack(PackCollate):
    """Packed rows with the names that torchtitan gives them."""

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(samples)
        return {**batch, "positions": batch["position_ids"]}

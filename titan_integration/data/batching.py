"""The data section's batching as arguments of ``odb_nodes``, for rows by number and for streams."""

from odb_nodes import PadCollate, Rounding, TokenBudget
from titan_integration.data.config import OdbConfig


def make_rounding(odb: OdbConfig, *, multiple: int, max_len: int) -> Rounding:
    """Lengths that batches are padded to.

    Args:
        odb: The section.
        multiple: What the model needs, in tokens.
        max_len: Longest sample. A padded row may be as long; a packed one, as the budget.
    """
    longest = odb.token_budget if odb.layout == "packed" else max_len
    return Rounding(
        multiple=multiple,
        per_doubling=odb.shape_buckets,
        longest=-(-longest // multiple) * multiple,
    )


def make_budget(odb: OdbConfig, rounding: Rounding) -> TokenBudget:
    """Limits of a batch; a padded row counts as long as it will be padded to."""
    return TokenBudget(odb.token_budget, rounding=None if odb.layout == "packed" else rounding)


def make_collate(odb: OdbConfig, rounding: Rounding) -> PadCollate:
    """Samples to tensors."""
    return PadCollate(pad_to_multiple_of=rounding, layout=odb.layout, positions=True)

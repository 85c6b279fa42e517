"""How the samples of a microbatch are laid out, as ``data.odb`` says."""

from odb_nodes import Cost, PackCollate, Packed, PadCollate, Padded, Rounding
from titan_integration.data.config import OdbConfig


def batch_layout(odb: OdbConfig, cost: tuple[float, float]) -> Packed | Padded:
    """Which samples form a microbatch.

    Args:
        odb: Whose layout is decided.
        cost: What the model makes of a token, and of a pair of tokens of one sample.
    """
    if odb.layout == "packed":
        return Packed(rows=odb.rows, cost=Cost(*cost))
    return Padded(cost=Cost(*cost))


def batch_collate(odb: OdbConfig, rounding: Rounding, max_len: int) -> PadCollate | PackCollate:
    """What makes tensors of them.

    Args:
        odb: Whose layout is decided.
        rounding: Of the length of rows.
        max_len: Longest sample; models check the positions of padding, too.
    """
    if odb.layout != "packed":
        return PadCollate(pad_to_multiple_of=rounding, positions=True)
    return PackCollate(
        odb.token_budget // odb.rows,
        rows=odb.rows,
        shape=odb.shape,
        pad_to_multiple_of=rounding,
        longest_padding=max_len,
    )

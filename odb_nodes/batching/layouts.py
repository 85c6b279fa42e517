"""The registered layouts. A new one is a module of its own and an entry here."""

from odb_nodes.batching.cost import Cost
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.packed import Packed
from odb_nodes.batching.padded import Padded

LAYOUTS = (Padded.name, Packed.name)


def find_layout(
    layout: str | Layout, *, rows: int | None = None, cost: Cost | None = None
) -> Layout:
    """The layout of that name, or a layout as it is.

    Args:
        layout: "padded", "packed", or a layout.
        rows: Of a packed group; 1 by default.
        cost: What a document costs, for a layout given by name.
    Raises:
        ValueError: There is none of that name, or what else is given does not go with it.
    """
    if not isinstance(layout, str):
        if cost is not None or rows is not None:
            raise ValueError("rows and cost go with a layout's name: give them to the layout")
        return layout
    if layout == Packed.name:
        return Packed(rows=1 if rows is None else rows, cost=cost or Cost())
    if layout == Padded.name:
        if rows is not None:
            raise ValueError('rows are of packed groups: leave it out, or use layout="packed"')
        return Padded(cost=cost or Cost())
    raise ValueError(f"layout must be one of {list(LAYOUTS)}, got {layout!r}")

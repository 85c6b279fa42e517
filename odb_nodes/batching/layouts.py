"""The registered layouts. A new one is a module of its own and an entry here."""

from odb_nodes.batching.cost import Cost
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.packed import Packed
from odb_nodes.batching.padded import Padded

LAYOUTS: dict[str, type[Padded] | type[Packed]] = {Padded.name: Padded, Packed.name: Packed}


def find_layout(layout: "str | Layout", cost: Cost | None = None) -> Layout:
    """The layout of that name, or a layout as it is.

    Args:
        layout: "padded", "packed", or a layout.
        cost: What a document costs, for a layout given by name.
    Raises:
        ValueError: There is none of that name, or a layout comes with a cost of its own.
    """
    if not isinstance(layout, str):
        if cost is not None:
            raise ValueError("a layout object has its own cost: give cost to the layout")
        return layout
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {sorted(LAYOUTS)}, got {layout!r}")
    return LAYOUTS[layout](cost=cost or Cost())

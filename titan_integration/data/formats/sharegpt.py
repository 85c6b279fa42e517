"""Rows with ``conversations`` of ``from`` and ``value``, tool turns included."""

from titan_integration.data.formats.calls import read_tools
from titan_integration.data.formats.document import Document, Reading, RowError
from titan_integration.data.formats.fields import Fields
from titan_integration.data.formats.turns import SYSTEM_COLUMNS, conversation


def fits(fields: Fields) -> bool:
    """Whether there is a list of ``conversations``."""
    return fields.has("conversations", list)


def read(fields: Fields, reading: Reading) -> Document:
    """All turns; ``function_call`` turns are tool calls, ``observation`` turns their results."""
    if not fits(fields):
        raise RowError("no 'conversations'")
    tools = read_tools(fields.get("tools") or fields.get("functions"))
    return conversation(
        fields.get("conversations"), reading, system=fields.text(*SYSTEM_COLUMNS), tools=tools
    )

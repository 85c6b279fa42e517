"""Rows with ``messages``, as OpenAI's and most chat datasets have them; bare lists as well."""

from titan_integration.data.formats.calls import read_tools
from titan_integration.data.formats.document import Document, Reading, RowError
from titan_integration.data.formats.fields import Fields
from titan_integration.data.formats.turns import SYSTEM_COLUMNS, conversation

COLUMNS = ("messages", "conversation", "dialogue", "chat")


def fits(fields: Fields) -> bool:
    """Whether a column holds a list of messages."""
    return any(fields.has(name, list) for name in COLUMNS)


def read(fields: Fields, reading: Reading) -> Document:
    """All messages, with the row's system column and tools."""
    name = next((name for name in COLUMNS if fields.has(name, list)), None)
    if name is None:
        raise RowError("no 'messages'")
    tools = read_tools(fields.get("tools") or fields.get("functions"))
    return conversation(fields.get(name), reading, system=fields.text(*SYSTEM_COLUMNS), tools=tools)

"""Rows of plain text."""

from titan_integration.data.formats.document import Document, Reading, RowError
from titan_integration.data.formats.fields import Fields

COLUMNS = ("text", "content")


def fits(fields: Fields) -> bool:
    """Whether there is a text."""
    return any(fields.has(name, str) for name in COLUMNS)


def read(fields: Fields, reading: Reading) -> Document:
    """The text as it is.

    Raises:
        RowError: There is none, or it is blank.
    """
    text = fields.text(*COLUMNS)
    if text is None:
        raise RowError("no 'text'")
    if not text.strip():
        raise RowError("empty text")
    return Document(text=text)

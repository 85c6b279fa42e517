"""Plain text: a row per line that is not blank, as ``{"text": line}``."""

from titan_integration.data.sources.files import File
from titan_integration.data.sources.kind import Kind, Options
from titan_integration.data.sources.lines import find_lines, open_spans
from titan_integration.data.sources.table import Table

SUFFIXES = {".txt", ".text", ".md"}


def open_text(file: File, options: Options) -> Table:
    """A row per line."""
    return open_spans(file, "lines", find_lines, _read, by_line=True)


def _read(line: bytes) -> dict[str, str]:
    return {"text": line.decode("utf-8").rstrip("\r")}


TEXT = Kind(
    name="text",
    matches=lambda file, head: bool(
        {suffix.lower() for suffix in file.given.suffixes[-2:]} & SUFFIXES
    ),
    open=open_text,
)

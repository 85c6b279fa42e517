"""What a kind of input has to give."""

from collections.abc import Callable
from dataclasses import dataclass

from titan_integration.data.sources.files import File
from titan_integration.data.sources.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How sources are opened.

    Attributes:
        split: Part of a dataset that has several, in the notation of ``datasets``
            ("test", "train[:10%]"); None is "train", or the only one.
        pictures: Whether the rows may name pictures, which are then looked for.
    """

    split: str | None = None
    pictures: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of file.

    Attributes:
        name: For messages.
        matches: ``(file, its first bytes) -> whether it is of this kind``; content first, and
            the name of the file only where content cannot tell.
        open: ``(file, options) -> Table``. Raises UserError on what cannot be read.
    """

    name: str
    matches: Callable[[File, bytes], bool]
    open: Callable[[File, Options], Table]

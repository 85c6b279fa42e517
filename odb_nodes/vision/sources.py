"""Where the bytes of a picture are, and what each kind of them is called in messages."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from odb_nodes.vision.errors import PictureError


class ReadsBytes(Protocol):
    """Bytes that are read when they are needed, as ``pathlib.Path`` reads them."""

    def read_bytes(self) -> bytes:
        """All of them; raises OSError or ValueError."""
        ...


Source = str | Path | bytes | Mapping[str, Any] | ReadsBytes


def source_name(source: Source) -> str:
    """A picture's name for messages: its path, or how many bytes it is."""
    plain = _plain(source)
    if isinstance(plain, bytes):
        path = source.get("path") if isinstance(source, Mapping) else None
        return str(path) if path else f"a picture of {len(plain)} bytes"
    return str(plain)


def open_source(source: Source) -> IO[bytes]:
    """The bytes as a file.

    Args:
        source: A path, bytes, ``{"bytes": ..., "path": ...}`` as Hugging Face's ``datasets`` has
            them, or an object with ``read_bytes()``, whose ``str`` names it.
    Raises:
        PictureError: They cannot be had.
    """
    name = source_name(source)
    plain = _plain(source)
    if isinstance(plain, str) and plain.startswith(("http://", "https://")):
        raise PictureError(
            "remote", f"{name}: pictures are read from files; download it and give its path"
        )
    try:
        if isinstance(plain, str | Path):
            return Path(plain).open("rb")
        return io.BytesIO(plain if isinstance(plain, bytes) else plain.read_bytes())
    except FileNotFoundError:
        raise PictureError("missing", f"{name}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise PictureError("unreadable", f"{name}: it cannot be read: {error}") from error


def _plain(source: Any) -> Any:
    """A path, bytes, or an object with ``read_bytes``."""
    if isinstance(source, Mapping):
        found = source.get("bytes")
        found = source.get("path") if found is None else found
        if found is None:
            raise PictureError("missing", "a picture has neither bytes nor a path")
        source = found
    if isinstance(source, bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | bytes) or hasattr(source, "read_bytes"):
        return source
    raise PictureError(
        "not a picture",
        'a picture must be a path, bytes, {"bytes": ..., "path": ...} or have read_bytes(), '
        f"got {type(source).__name__}",
    )

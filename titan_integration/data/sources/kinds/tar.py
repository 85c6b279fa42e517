"""Tar archives of pictures and texts, a row per name, as the webdataset library writes them.

``0001.jpg`` and ``0001.txt`` are a row ``{"image": ..., "text": ...}``; ``0001.json`` is a row as
it would stand in a file of its own, to which the pictures of the same name are added. Picture
bytes stay in the archive: a row says where.
"""

import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titan_integration.data.pictures.sources import Slice
from titan_integration.data.sources.cache import progress
from titan_integration.data.sources.files import File, FileTable
from titan_integration.data.sources.kind import Kind, Options
from titan_integration.data.sources.table import Table, check_index
from titan_integration.errors import UserError

PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
TEXTS = ("txt", "text", "caption")
Member = tuple[str, int, int]  # what follows the first dot of its name, first byte, size


@dataclass(kw_only=True)
class TarTable(FileTable):
    """Rows of an archive; memory: the names of its members.

    Args:
        names: Of the rows.
        members: Of each row, in the order of the archive.
    """

    names: Sequence[str]
    members: Sequence[Sequence[Member]]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> Any:
        row: dict[str, Any] = {}
        pictures = []
        for ending, offset, size in self.members[check_index(index, len(self))]:
            part = Slice(self.file.path, offset, size, f"{self._name(index)}.{ending}")
            kind = ending.rpartition(".")[2].lower()
            if kind in PICTURES:
                pictures.append(part)
            elif kind == "json":
                row = {**row, **self._parsed(part)}
            else:
                row["text" if kind in TEXTS else ending] = self._text(part)
        if pictures and not row.keys() & {"image", "images"}:
            row["images" if len(pictures) > 1 else "image"] = (
                pictures if len(pictures) > 1 else pictures[0]
            )
        if row.keys() & {"messages", "conversations"}:
            row.pop("text", None)  # the same in other words
        return row

    def where(self, index: int, /) -> str:
        """``archive name``."""
        return self._name(index)

    def _name(self, index: int) -> str:
        return f"{self.file.given} {self.names[index]}"

    def _text(self, part: Slice) -> str:
        try:
            return part.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{part} is not UTF-8 text") from error

    def _parsed(self, part: Slice) -> dict[str, Any]:
        try:
            value = json.loads(self._text(part))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{part} is not JSON") from error
        return value if isinstance(value, dict) else {"messages": value}


def open_tar(file: File, options: Options) -> Table:
    """A row per name of the archive, in its order.

    Raises:
        UserError: The rows may name no pictures, or the archive is damaged or holds none.
    """
    if not options.pictures:
        raise UserError(
            f"{file.given} is a tar archive, which is read for a model that takes pictures only: "
            "unpack it, and give the folder"
        )
    found: dict[str, list[Member]] = {}
    try:
        with progress(f"indexing {file.given}", file.size) as shown, tarfile.open(file.path) as tar:
            for member in tar:
                if member.isfile():
                    folder, name = Path(member.name).parent, Path(member.name).name
                    stem, _, ending = name.partition(".")
                    place = (ending, member.offset_data, member.size)
                    found.setdefault(str(folder / stem), []).append(place)
                    shown.to(member.offset_data + member.size)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"cannot read {file.given}: {error}") from error
    if not found:
        raise UserError(f"{file.given} holds no file")
    return TarTable(file=file, names=list(found), members=list(found.values()))


def is_tar(file: File, head: bytes) -> bool:
    """Whether the first block is a tar header."""
    return head[257:262] == b"ustar"


TAR = Kind(name="tar", matches=is_tar, open=open_tar)

"""What the ``datasets`` library opens: folders of ``save_to_disk``, and names on the Hub."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titan_integration.data.sources.cache import Cache
from titan_integration.data.sources.fingerprint import combine, fingerprint_files
from titan_integration.data.sources.kind import Options
from titan_integration.data.sources.kinds.arrow import without_nulls
from titan_integration.data.sources.table import Table, check_index
from titan_integration.errors import UserError

if TYPE_CHECKING:
    import datasets  # takes a second to import: only where it is needed

_DEFAULT_SPLIT = "train"


@dataclass(kw_only=True)
class DatasetTable:
    """A ``datasets.Dataset``, memory-mapped.

    Args:
        name: As a person gave it.
        data: Its rows.
    """

    name: str
    data: "datasets.Dataset"
    _fingerprint: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # As Arrow values: pictures and sounds stay bytes until somebody needs them.
        self.data = self.data.with_format("arrow")

    @property
    def files(self) -> tuple[str, ...]:
        """The dataset's name."""
        return (self.name,)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int, /) -> Any:
        return without_nulls(self.data[check_index(index, len(self))].to_pylist()[0])

    def where(self, index: int, /) -> str:
        """``name row number``, from 1."""
        return f"{self.name} row {index + 1}"

    def fingerprint(self) -> str:
        """Of the Arrow files behind it, and of the rows chosen from them."""
        if self._fingerprint is None:
            paths = [Path(file["filename"]) for file in self.data.cache_files]
            self._fingerprint = combine([fingerprint_files(paths), len(self)])
        return self._fingerprint


def is_saved(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote this folder."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def open_saved(folder: Path, options: Options) -> Table:
    """A folder of ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``."""
    import datasets

    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # of any library below it
        raise UserError(f"cannot read the dataset in {folder}: {first_line(error)}") from error
    if isinstance(found, datasets.Dataset):
        no_split(str(folder), options)
        return DatasetTable(name=str(folder), data=found)
    split = choose_split(str(folder), list(found), options)
    return DatasetTable(name=f"{folder} ({split})", data=found[split])


def open_named(name: str, options: Options, cache: Cache) -> Table:
    """A dataset by its name on the Hub: ``owner/name`` or ``owner/name:configuration``."""
    import datasets

    path, _, configuration = name.partition(":")
    try:
        split = options.split
        if split is None:
            splits = datasets.get_dataset_split_names(path, configuration or None)
            split = choose_split(name, splits, options)
        found = datasets.load_dataset(path, configuration or None, split=split)
    except UserError:
        raise
    except Exception as error:  # of any library below it
        raise UserError(
            f"{name} is no file or folder here, and cannot be loaded as a dataset of that name "
            f"({first_line(error)}); give a path, or a name as on huggingface.co"
        ) from error
    return DatasetTable(name=f"{name} ({split})", data=found)


def choose_split(name: str, splits: list[str], options: Options) -> str:
    """The split asked for, else "train", else the only one. Raises UserError, listing them."""
    wanted = options.split
    if wanted is None and len(splits) == 1:
        return splits[0]
    wanted = wanted or _DEFAULT_SPLIT
    if wanted not in splits:
        raise UserError(
            f"{name} has the splits {', '.join(splits)}, got {wanted!r}; choose by --data.split"
        )
    return wanted


def no_split(name: str, options: Options) -> None:
    """Raise UserError if a split was asked for where there are none."""
    if options.split is not None:
        raise UserError(f"{name} has no splits, got --data.split {options.split}; leave it out")


def first_line(error: Exception) -> str:
    """What a library says, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

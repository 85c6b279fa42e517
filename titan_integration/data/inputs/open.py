"""All that a run reads, training rows or held-out ones, as one mixture of sources."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from titan_integration.data.inputs.joined import First, Split
from titan_integration.data.inputs.mixture import Mixture, Source
from titan_integration.data.inputs.paths import check_path, open_path
from titan_integration.data.sources.cache import Cache
from titan_integration.data.sources.kind import Options
from titan_integration.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What a person asks to be read.

    Attributes:
        paths: Files, folders, patterns or dataset names; each is a source of weight 1.
        mix: The same with weights, ``path:weight``; instead of ``paths``.
        split: Of datasets that have splits.
        max_samples: Only the first so many rows of ``paths``.
        validation_fraction: Part of every source's rows that is held out; 0 is none.
        seed: Draws the rows of weights that are no whole numbers.
        cache: For what is made out of files.
        pictures: Whether the rows may name pictures.
    """

    paths: Sequence[str] = ()
    mix: Sequence[str] = ()
    split: str | None = None
    max_samples: int | None = None
    validation_fraction: float = 0.0
    seed: int = 0
    cache: Cache = field(default_factory=Cache)
    pictures: bool = False

    def check(self) -> None:
        """Raise UserError on what cannot be read, as far as that is seen without reading."""
        if self.paths and self.mix:
            raise UserError("data.path and data.mix both name rows: give one of them")
        if self.mix and self.max_samples is not None:
            raise UserError("data.max_samples cannot limit a mixture: lower weights of data.mix")
        if not 0 <= self.validation_fraction <= 0.5:
            raise UserError(
                "data.validation_fraction must be between 0 and 0.5, got "
                f"{self.validation_fraction}"
            )
        for path in self.paths:
            check_path(path, "data.path")
        weights = [split_weight(item) for item in self.mix]
        for path, _ in weights:
            check_path(path, "data.mix")
        paths = [path for path, _ in weights] or list(self.paths)
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise UserError(f"{twice} is given twice; to read it twice, set --data.mix {twice}:2")

    def open(self, *, held_out: bool = False) -> Mixture:
        """The rows to train on, or those held out of them (each once, whatever its weight).

        Raises:
            UserError: An input cannot be read, or nothing is held out.
        """
        sources = self._limited([self._open(path, weight) for path, weight in self._weighted()])
        if self.validation_fraction:
            sources = [self._part(source, held_out) for source in sources]
        mixture = Mixture(sources=sources, seed=self.seed)
        if held_out and not len(mixture):
            raise UserError(
                f"data.validation_fraction {self.validation_fraction} holds out none of so few "
                "rows; raise it, or name rows by --data.validation_path"
            )
        return mixture

    def _weighted(self) -> list[tuple[str, float]]:
        return [split_weight(item) for item in self.mix] or [(path, 1.0) for path in self.paths]

    def _open(self, path: str, weight: float) -> Source:
        options = Options(split=self.split, pictures=self.pictures)
        table = open_path(path, options, self.cache)
        return Source(name=self._short(path), table=table, weight=weight)

    def _short(self, path: str) -> str:
        """The last part of a path, where that tells it from the others."""
        names = [Path(other).name for other, _ in self._weighted()]
        return Path(path).name if names.count(Path(path).name) == 1 else path

    def _limited(self, sources: list[Source]) -> list[Source]:
        left = self.max_samples
        if left is None:
            return sources
        limited = []
        for source in sources:
            table = First(table=source.table, limit=left)
            left -= len(table)
            limited.append(replace(source, table=table))
        return limited

    def _part(self, source: Source, held_out: bool) -> Source:
        table = Split(table=source.table, fraction=self.validation_fraction, held_out=held_out)
        return replace(source, table=table, weight=1.0 if held_out else source.weight)


def split_weight(item: str) -> tuple[str, float]:
    """Path and weight of ``path:weight``; 1 where there is no number behind the last colon.

    Raises:
        UserError: The weight is no positive number.
    """
    path, _, text = item.rpartition(":")
    try:
        weight = float(text)
    except ValueError:
        return item, 1.0
    if not path or not 0 < weight < float("inf"):
        raise UserError(f"data.mix must be path:weight with weights over 0, got {item!r}")
    return path, weight

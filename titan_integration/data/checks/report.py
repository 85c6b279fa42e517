"""What reading every row found: a plain record, for the log, for the cache and for ``odb-plan``."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

PERCENTS = (50, 95, 99, 100)
MOST_REASONS = 50


@dataclass(kw_only=True, slots=True)
class Report:
    """Counts over rows, which add up: the report of two shares is ``a.merged(b)``.

    Attributes:
        rows: Rows read.
        samples: Samples that they give; more than ``rows`` where a row gives several.
        answers: Answers in the rows, as they stand there; a text is one answer.
        answers_trained: Those of them with at least one token that carries loss.
        target_tokens: Tokens that carry loss.
        pictures: In all samples.
        patches: Of all pictures.
        dropped: Rows that give no sample, by reason.
        examples: A place, as ``file:line``, for each reason.
        unread_keys: Columns and message keys that nothing reads, with the number of their rows.
        histogram: Length in tokens -> samples of it.
        shown: A place and the sample found there, for a person to look at.
        files: What was read.
    """

    rows: int = 0
    samples: int = 0
    answers: int = 0
    answers_trained: int = 0
    target_tokens: int = 0
    pictures: int = 0
    patches: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    unread_keys: Counter[str] = field(default_factory=Counter)
    histogram: Counter[int] = field(default_factory=Counter)
    shown: str = ""
    files: list[str] = field(default_factory=list)

    def drop(self, reason: str, place: str) -> None:
        """Count a row that gives no sample; a template's own words may be endlessly many."""
        if reason not in self.dropped and len(self.dropped) >= MOST_REASONS:
            reason = "other reasons"
        self.dropped[reason] += 1
        self.examples.setdefault(reason, place)

    def merged(self, other: "Report") -> "Report":
        """The report of both shares' rows; of the same files."""
        return Report(
            rows=self.rows + other.rows,
            samples=self.samples + other.samples,
            answers=self.answers + other.answers,
            answers_trained=self.answers_trained + other.answers_trained,
            target_tokens=self.target_tokens + other.target_tokens,
            pictures=self.pictures + other.pictures,
            patches=self.patches + other.patches,
            dropped=self.dropped + other.dropped,
            examples={**other.examples, **self.examples},
            unread_keys=self.unread_keys + other.unread_keys,
            histogram=self.histogram + other.histogram,
            shown=self.shown or other.shown,
            files=self.files or other.files,
        )

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return sum(length * count for length, count in self.histogram.items())

    @property
    def lengths(self) -> dict[str, int]:
        """Median, 95th and 99th percentile, and longest length of a sample, in tokens."""
        found = percentiles(self.histogram, PERCENTS)
        return dict(zip(("median", "p95", "p99", "longest"), found, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return {
            "rows": self.rows,
            "samples": self.samples,
            "answers": self.answers,
            "answers_trained": self.answers_trained,
            "target_tokens": self.target_tokens,
            "tokens": self.tokens,
            "pictures": self.pictures,
            "patches": self.patches,
            "dropped": dict(self.dropped),
            "examples": dict(self.examples),
            "unread_keys": dict(self.unread_keys),
            "lengths": self.lengths,
            "histogram": {str(length): n for length, n in sorted(self.histogram.items())},
            "shown": self.shown,
            "files": list(self.files),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Report":
        """The inverse of :meth:`to_dict`."""
        return cls(
            rows=values["rows"],
            samples=values["samples"],
            answers=values["answers"],
            answers_trained=values["answers_trained"],
            target_tokens=values["target_tokens"],
            pictures=values["pictures"],
            patches=values["patches"],
            dropped=Counter(values["dropped"]),
            examples=dict(values["examples"]),
            unread_keys=Counter(values["unread_keys"]),
            histogram=Counter({int(length): n for length, n in values["histogram"].items()}),
            shown=values["shown"],
            files=list(values["files"]),
        )


def percentiles(histogram: Counter[int], percents: Iterable[int]) -> list[int]:
    """The smallest value that at least so many percent of all counts do not exceed.

    ``{3: 1, 5: 2, 9: 1}`` at 50 and 100 percent gives 5 and 9. All 0 where nothing was counted.
    """
    values = sorted(histogram)
    reached = list(accumulate(histogram[value] for value in values))
    found = []
    for percent in percents:
        fits = (v for v, n in zip(values, reached, strict=True) if n * 100 >= percent * reached[-1])
        found.append(next(fits, 0))
    return found

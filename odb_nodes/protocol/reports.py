"""What ranks tell each other in a round: a report each, merged into facts that all share.

The merge is an element-wise maximum, so a round costs O(1) bytes per rank. Guarantee G2 (no
deadlock) holds because whatever decides on a further collective is computed from ``Facts`` alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_NONE = 1 << 62  # "no bound from this rank" where a minimum is taken
_EMPTY, _EMPTY_WITHOUT_FILLER = 1, 2  # of a rank without samples; one integer tells both


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What one rank tells the others in a round.

    Attributes:
        groups: Groups it would emit if it were alone; 0 if and only if ``samples`` is 0.
        samples: Samples it holds.
        capacity: Most steps it can take this round, or None for no bound.
        exhausted: Its view has no further sample.
        failed: Its source raised.
        stopping: It wants to end the pass here.
        lacks_filler: It has no sample that it could mask in an IDLE step.
    """

    groups: int = 0
    samples: int = 0
    capacity: int | None = None
    exhausted: bool = True
    failed: bool = False
    stopping: bool = False
    lacks_filler: bool = False

    def encode(self, rank: int, agreement: int) -> list[int]:
        """As integers whose element-wise maximum over ranks is ``Facts``; 9 of them, 72 bytes.

        Args:
            rank: This rank.
            agreement: Non-negative digest of what must be equal on all ranks.
        """
        return [
            rank + 1 if self.failed else 0,
            rank + 1 if self.stopping else 0,
            int(not self.exhausted),
            self.groups,
            -(_NONE if self.capacity is None else self.capacity),
            -(self.samples or _NONE),
            0 if self.samples else _EMPTY_WITHOUT_FILLER if self.lacks_filler else _EMPTY,
            agreement,
            -agreement,
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What all ranks know of a round after the exchange.

    Attributes:
        failed_rank: A rank that failed, or None.
        stopping_rank: A rank that stops, or None.
        any_open: Some view has further samples.
        max_groups: Largest number of groups on a rank.
        min_capacity: Smallest capacity, at most ``2**62``.
        min_samples: Smallest number of samples among ranks that have any.
        any_empty: Some rank has none.
        any_lacks_filler: Some rank has none and never had one, so that it needs a peer's filler.
        agreed: ``agreement`` was equal on all ranks.
    """

    failed_rank: int | None
    stopping_rank: int | None
    any_open: bool
    max_groups: int
    min_capacity: int
    min_samples: int
    any_empty: bool
    agreed: bool
    any_lacks_filler: bool = False

    @staticmethod
    def decode(maxima: Sequence[int]) -> "Facts":
        """From the element-wise maximum of ``Report.encode`` over all ranks."""
        failed, stopping, is_open, groups, capacity, samples, empty, high, low = maxima
        return Facts(
            failed_rank=failed - 1 if failed else None,
            stopping_rank=stopping - 1 if stopping else None,
            any_open=bool(is_open),
            max_groups=groups,
            min_capacity=-capacity,
            min_samples=-samples,
            any_empty=empty >= _EMPTY,
            any_lacks_filler=empty == _EMPTY_WITHOUT_FILLER,
            agreed=high == -low,
        )

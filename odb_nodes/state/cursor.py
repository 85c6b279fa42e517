"""Which positions of an epoch a rank owns, as a cursor of a few integers. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from odb_nodes.errors import StateError
from odb_nodes.state.checks import read_count, shorten
from odb_nodes.state.permutation import key64, mix64

Positions = npt.NDArray[np.int64]
NO_POSITIONS: Positions = np.empty(0, np.int64)
# No positions, packed. Not empty: torch.load(weights_only=True) refuses empty bytes.
NO_PACKED = b"\0"
_CHUNK = 1 << 20
_MASK = (1 << 64) - 1
_SALT_INT = key64(20260, 19989)
_SALT = np.uint64(_SALT_INT)


def digest(positions: Positions) -> int:
    """Order-independent 64-bit digest of a multiset of positions; digests add modulo 2**64."""
    return int(digests(positions).sum(dtype=np.uint64))


def digest_one(position: int) -> int:
    """Digest of a single position, in plain integers: an array of one costs 10 times more."""
    key = (position + _SALT_INT) & _MASK
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
    return key ^ (key >> 31)


def digests(positions: Positions) -> npt.NDArray[np.uint64]:
    """The digest of each position alone; same shape."""
    return mix64(positions.astype(np.uint64) + _SALT)


def digest_range(start: int, stop: int, step: int = 1) -> int:
    """Digest of ``range(start, stop, step)`` in O(1) memory."""
    total = 0
    for low in range(start, stop, step * _CHUNK):
        high = min(stop, low + step * _CHUNK)
        total += digest(np.arange(low, high, step, dtype=np.int64))
    return total & _MASK


def pack_positions(positions: Positions) -> bytes:
    """Positions as little-endian int64, 8 bytes each; none of them as ``NO_PACKED``."""
    return positions.astype("<i8").tobytes() or NO_PACKED


def join_packed(left: bytes, right: bytes) -> bytes:
    """The packed positions of both."""
    return b"".join(part for part in (left, right) if part != NO_PACKED) or NO_PACKED


def unpack_positions(blob: Any, num_samples: int, what: str) -> Positions:
    """Inverse of ``pack_positions``.

    Raises:
        StateError: Not bytes, not a multiple of 8 long, or a position outside the epoch.
    """
    if blob == NO_PACKED:
        return NO_POSITIONS
    if not isinstance(blob, bytes) or len(blob) % 8:
        raise StateError(f"{what} must be bytes, 8 per position, got {type(blob).__name__}")
    positions = np.frombuffer(blob, "<i8").astype(np.int64)
    if positions.size and not (positions.min() >= 0 and positions.max() < num_samples):
        raise StateError(f"{what} holds a position outside [0, {num_samples})")
    return positions


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewCursor:
    """A rank's share of an epoch and how much of it was taken.

    The k-th view of the share is ``leftovers[k]``, then position
    ``tail_start + (k - len(leftovers)) * world_size + rank`` while that is below ``num_samples``.
    A fresh epoch has no leftovers and ``tail_start`` 0: rank r owns r, r + W, r + 2W, ...

    Attributes:
        num_samples: Length of the epoch over all ranks.
        epoch: Pass over the dataset.
        rank: Data-parallel rank.
        world_size: Number of data-parallel ranks.
        taken: Views taken from the front of the share.
        leftovers: Positions dealt out by a change of world size, ``[n]``.
        tail_start: First position of the strided part.
    """

    num_samples: int
    epoch: int
    rank: int
    world_size: int
    taken: int = 0
    leftovers: Positions = field(default_factory=lambda: NO_POSITIONS)
    tail_start: int = 0

    @property
    def size(self) -> int:
        """Views in the share, taken or not."""
        tail = self.num_samples - self.tail_start - self.rank
        return len(self.leftovers) + max(0, -(-tail // self.world_size))

    def positions(self, start: int, stop: int) -> Positions:
        """Positions of the views ``start`` to ``stop`` of the share (clipped to its size)."""
        stop = min(stop, self.size)
        kept = len(self.leftovers)
        head = self.leftovers[start:stop]
        low, high = max(0, start - kept), max(0, stop - kept)
        tail = np.arange(low, high, dtype=np.int64) * self.world_size
        return np.concatenate([head, tail + (self.tail_start + self.rank)])

    def share_digest(self) -> int:
        """Digest of the whole share."""
        tail = digest_range(self.tail_start + self.rank, self.num_samples, self.world_size)
        return (digest(self.leftovers) + tail) & _MASK

    def advanced(self, taken: int) -> "ViewCursor":
        """The same share with ``taken`` views taken."""
        return replace(self, taken=taken)

    def to_state(self) -> dict[str, Any]:
        """Plain values; ``leftovers`` as bytes, 8 per position."""
        return {
            "num_samples": self.num_samples,
            "epoch": self.epoch,
            "rank": self.rank,
            "world_size": self.world_size,
            "taken": self.taken,
            "leftovers": pack_positions(self.leftovers),
            "tail_start": self.tail_start,
        }

    @staticmethod
    def from_state(state: Any) -> "ViewCursor":
        """Inverse of ``to_state``.

        Raises:
            StateError: A field is missing, of another type or out of range.
        """
        if not isinstance(state, dict):
            raise StateError(f"view state must be a dict, got {type(state).__name__}")
        if set(state) != {*_FIELDS, "leftovers"}:
            raise StateError(
                f"view state must have {[*_FIELDS, 'leftovers']}, got {shorten(state)}"
            )
        values = {name: read_count(state, name, "view state") for name in _FIELDS}
        leftovers = unpack_positions(
            state.get("leftovers"), values["num_samples"], "view state 'leftovers'"
        )
        cursor = ViewCursor(leftovers=leftovers, **values)
        if not cursor.rank < cursor.world_size:
            raise StateError(f"rank {cursor.rank} is outside world size {cursor.world_size}")
        if cursor.tail_start > cursor.num_samples or cursor.taken > cursor.size:
            raise StateError(
                f"view state counts {cursor.taken} views taken from a share of {cursor.size}"
            )
        return cursor


_FIELDS = ("num_samples", "epoch", "rank", "world_size", "taken", "tail_start")


def reshard_cursors(
    cursors: list[ViewCursor], held: Positions, world_size: int
) -> list[ViewCursor]:
    """Deal what the old ranks did not deliver to ``world_size`` new ranks.

    Below the row that the furthest rank has reached, what is left is listed by position; above
    it the new ranks stride over the rest as in a fresh epoch, so the result stays compact.

    Args:
        cursors: One per old rank, of one layout, ordered by rank.
        held: Positions taken from a view but not delivered, all ranks together.
        world_size: New number of ranks, at least 1.
    Returns:
        One cursor per new rank, nothing taken. Their shares are disjoint, and together hold
        exactly ``held`` and the views not taken.
    """
    first = cursors[0]
    rows = max(max(0, cursor.taken - len(cursor.leftovers)) for cursor in cursors)
    parts = [held]
    for cursor in cursors:
        parts.append(cursor.positions(cursor.taken, len(cursor.leftovers) + rows))
    rest = np.sort(np.concatenate(parts))
    tail_start = min(first.num_samples, first.tail_start + rows * first.world_size)
    return [
        ViewCursor(
            num_samples=first.num_samples,
            epoch=first.epoch,
            rank=rank,
            world_size=world_size,
            leftovers=rest[rank::world_size],
            tail_start=tail_start,
        )
        for rank in range(world_size)
    ]


def remaining(cursors: list[ViewCursor]) -> Iterator[Positions]:
    """Positions not taken yet, over all ranks, in chunks."""
    for cursor in cursors:
        for start in range(cursor.taken, cursor.size, _CHUNK):
            yield cursor.positions(start, start + _CHUNK)

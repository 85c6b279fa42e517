"""Other ways to fill packed rows, for comparison: each takes a rank's lengths in order of arrival.

They return rows of places in that order. None of them looks at other ranks.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

OPEN_ROWS = 8
Rows = list[list[int]]


def greedy(lengths: Sequence[int], budget: int) -> Rows:
    """One open row; the first sample that does not fit closes it."""
    return first_fit(lengths, budget, open_rows=1)


def first_fit(lengths: Sequence[int], budget: int, open_rows: int = OPEN_ROWS) -> Rows:
    """A sample joins the first open row with room; where none has any, all go out.

    Source: what Grain's first-fit packing documents of itself; written anew.
    """
    done: Rows = []
    rows: Rows = [[] for _ in range(open_rows)]
    room = [budget] * open_rows
    for place, length in enumerate(lengths):
        at = next((i for i, left in enumerate(room) if length <= left or not rows[i]), None)
        if at is None:
            done += rows
            rows, room, at = [[] for _ in range(open_rows)], [budget] * open_rows, 0
        rows[at].append(place)
        room[at] -= length
    return done + [row for row in rows if row]


def best_fit_decreasing(lengths: Sequence[int], budget: int) -> Rows:
    """All lengths known: the longest first, each into the fullest row that has room."""
    rows: Rows = []
    room: list[tuple[int, int]] = []  # tokens left and number of a row, ascending
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        at = bisect_left(room, (lengths[place], -1))
        if at < len(room):
            left, row = room.pop(at)
        else:
            left, row = budget, len(rows)
            rows.append([])
        rows[row].append(place)
        insort(room, (left - lengths[place], row))
    return rows


PACKERS: dict[str, Callable[[Sequence[int], int], Rows]] = {
    "greedy": greedy,
    "first-fit": first_fit,
    "best-fit-decreasing": best_fit_decreasing,
}

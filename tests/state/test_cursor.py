"""Shares of an epoch: disjoint, complete, even, and exact through changes of world size."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_nodes.errors import StateError
from odb_nodes.state import cursor as cursor_module
from odb_nodes.state.cursor import (
    ViewCursor,
    digest,
    digest_range,
    digests,
    pack_positions,
    remaining,
    reshard_cursors,
    unpack_positions,
)


def new_shares(num_samples: int, world: int) -> list[ViewCursor]:
    return [
        ViewCursor(num_samples=num_samples, epoch=0, rank=rank, world_size=world)
        for rank in range(world)
    ]


def all_of(cursor: ViewCursor) -> list[int]:
    found: list[int] = cursor.positions(0, cursor.size).tolist()
    return found


@given(st.integers(0, 60), st.integers(1, 9))
def test_fresh_shares_are_disjoint_complete_and_even(num_samples: int, world: int) -> None:
    shares = [all_of(cursor) for cursor in new_shares(num_samples, world)]
    assert sorted(chain(*shares)) == list(range(num_samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [len(share) for share in shares] == [c.size for c in new_shares(num_samples, world)]


def test_rank_r_owns_every_world_size_th_position_from_r_on() -> None:
    assert all_of(new_shares(10, 3)[1]) == [1, 4, 7]


@given(st.data())
def test_any_chain_of_world_sizes_delivers_every_position_once(data: st.DataObject) -> None:
    """Each rank takes some views and keeps some of them undelivered; then the world changes."""
    num_samples = data.draw(st.integers(0, 40))
    cursors = new_shares(num_samples, data.draw(st.integers(1, 5)))
    delivered: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        held: list[int] = []
        moved = []
        for cursor in cursors:
            taken = data.draw(st.integers(0, cursor.size))
            kept = data.draw(st.integers(0, taken))
            positions = cursor.positions(0, taken).tolist()
            delivered += positions[kept:]
            held += positions[:kept]
            moved.append(cursor.advanced(taken))
        world = data.draw(st.integers(1, 5))
        cursors = reshard_cursors(moved, np.array(held, np.int64), world)
        assert [cursor.rank for cursor in cursors] == list(range(world))
        sizes = [cursor.size for cursor in cursors]
        assert max(sizes) - min(sizes) <= 2  # the listed and the strided part, by one each
        left = list(chain(*map(all_of, cursors)))
        assert sorted(delivered + left) == list(range(num_samples))


def test_a_reshard_stays_compact_however_large_the_epoch() -> None:
    size = 10**12
    cursors = [cursor.advanced(1000 + 3 * cursor.rank) for cursor in new_shares(size, 4)]
    new = reshard_cursors(cursors, np.arange(50, dtype=np.int64), 3)
    assert sum(len(cursor.leftovers) for cursor in new) == 50 + 9 + 6 + 3
    assert sum(cursor.size for cursor in new) == size - sum(c.taken for c in cursors) + 50


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_a_range_has_the_digest_of_its_positions_in_any_order(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_module, "_CHUNK", chunk)
    rng = np.random.default_rng(0)
    for start, stop, step in [(0, 0, 1), (0, 7, 1), (3, 20, 4), (5, 6, 9), (9, 4, 2)]:
        positions = rng.permutation(np.arange(start, stop, step, dtype=np.int64))
        assert digest_range(start, stop, step) == digest(positions)


def test_digests_add_up_and_notice_a_lost_a_repeated_and_a_swapped_position() -> None:
    whole = digest_range(0, 1000)
    parts = [digest_range(a, b) for a, b in pairwise([0, 1, 17, 600, 1000])]
    assert sum(parts) % (1 << 64) == whole
    positions = np.arange(1000, dtype=np.int64)
    assert digest(positions[1:]) != whole
    assert digest(np.append(positions, 5)) != whole
    assert digest(np.append(positions[:-1], 5)) != whole
    assert len(np.unique(digests(np.arange(100_000, dtype=np.int64)))) == 100_000


@given(st.integers(0, 50), st.integers(1, 6))
def test_share_digests_add_up_to_the_epoch(num_samples: int, world: int) -> None:
    total = sum(cursor.share_digest() for cursor in new_shares(num_samples, world))
    assert total % (1 << 64) == digest_range(0, num_samples)


@given(st.data())
def test_what_remains_is_what_was_not_taken(data: st.DataObject) -> None:
    cursors = new_shares(data.draw(st.integers(0, 40)), 3)
    cursors = [c.advanced(data.draw(st.integers(0, c.size))) for c in cursors]
    left = [int(p) for chunk in remaining(cursors) for p in chunk]
    assert left == [int(p) for c in cursors for p in c.positions(c.taken, c.size)]


def test_positions_pack_to_eight_bytes_and_come_back() -> None:
    positions = np.array([0, 5, 999], np.int64)
    blob = pack_positions(positions)
    assert blob == b"".join(int(p).to_bytes(8, "little") for p in positions)
    assert unpack_positions(blob, 1000, "held").tolist() == [0, 5, 999]
    for damaged in (blob[:-1], "text", None):
        with pytest.raises(StateError, match="held"):
            unpack_positions(damaged, 1000, "held")
    with pytest.raises(StateError, match="outside"):
        unpack_positions(blob, 999, "held")


def cursor_with_leftovers() -> ViewCursor:
    return reshard_cursors(
        [cursor.advanced(2) for cursor in new_shares(20, 2)], np.array([1], np.int64), 3
    )[1]


def test_a_cursor_comes_back_from_its_state() -> None:
    cursor = cursor_with_leftovers().advanced(1)
    state = cursor.to_state()
    back = ViewCursor.from_state(state)
    assert all_of(back) == all_of(cursor)
    assert back.taken == 1
    assert back.to_state() == state


@pytest.mark.parametrize("name", ["num_samples", "epoch", "rank", "taken", "tail_start"])
@pytest.mark.parametrize("value", [-1, True, None, "1", 1.0])
def test_a_damaged_cursor_is_refused(name: str, value: object) -> None:
    state = {**cursor_with_leftovers().to_state(), name: value}
    with pytest.raises(StateError, match=name):
        ViewCursor.from_state(state)


@pytest.mark.parametrize("change", [{"rank": 3}, {"taken": 9}, {"tail_start": 21}])
def test_a_cursor_that_contradicts_itself_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(StateError):
        ViewCursor.from_state({**cursor_with_leftovers().to_state(), **change})
    with pytest.raises(StateError, match="dict"):
        ViewCursor.from_state(None)

"""What every transport must do; run it on every rank of a world."""

import threading

import numpy as np

from odb_nodes.protocol.transport import Transport


def check_collectives(transport: Transport) -> None:
    """Run every collective with values that tell the ranks apart, several times over.

    Call it on all ranks at once, as a test of a transport of your own.

    Raises:
        AssertionError: A collective gives something else than it must; says which.
    """
    _check_numbers(transport)
    _check_bytes(transport)
    _check_the_channel_aside(transport)
    _check_stats(transport)
    transport.close()


def _check_numbers(transport: Transport) -> None:
    rank, size = transport.rank, transport.world_size
    assert 0 <= rank < size, f"rank {rank} is outside of world size {size}"
    for turn in range(3):
        largest = transport.all_max([rank + turn, -rank, (1 << 62) - rank, 7], "maximum")
        assert largest == [size - 1 + turn, 0, 1 << 62, 7], f"all_max gave {largest}"
        own = np.array([[rank, turn, 1], [1 << 40, -rank, 0]], np.int64)
        total = transport.all_sum(own, "sum")
        ranks = size * (size - 1) // 2
        expected = [[ranks, turn * size, size], [size << 40, -ranks, 0]]
        assert total.tolist() == expected, f"all_sum gave {total.tolist()}"
        assert own[0, 0] == rank, "all_sum must leave its argument as it is"
    none = transport.all_sum(np.zeros((0, 3), np.int64), "sum of nothing")
    assert none.shape == (0, 3), f"all_sum of nothing has shape {none.shape}"


def _check_bytes(transport: Transport) -> None:
    rank, size = transport.rank, transport.world_size
    for blob_of in (lambda r: bytes([r]) * (3 * r), lambda r: b"", lambda r: b"\0" * (r == 0)):
        found = transport.gather(blob_of(rank), "gather")
        assert found == [blob_of(r) for r in range(size)], f"gather gave {found}"


def _check_the_channel_aside(transport: Transport) -> None:
    """While one thread is in a collective, another one gathers."""
    rank, size = transport.rank, transport.world_size
    found: list[bytes] = transport.gather_aside(b"first", "aside")  # makes the channel
    assert found == [b"first"] * size, f"gather_aside gave {found}"
    rounds: list[list[int]] = []
    other = threading.Thread(
        target=lambda: rounds.extend(transport.all_max([rank], "beside") for _ in range(5))
    )
    other.start()
    for turn in range(5):
        found = transport.gather_aside(b"%d %d" % (rank, turn), "aside")
        assert found == [b"%d %d" % (r, turn) for r in range(size)], f"gather_aside gave {found}"
    other.join()
    assert rounds == [[size - 1]] * 5, f"all_max beside gather_aside gave {rounds}"


def _check_stats(transport: Transport) -> None:
    stats = transport.stats
    assert stats.bytes >= 0, f"stats count {stats.bytes} bytes"
    assert stats.rounds >= 0, f"stats count {stats.rounds} rounds"
    assert stats.wait_s >= 0, f"stats count {stats.wait_s} s"

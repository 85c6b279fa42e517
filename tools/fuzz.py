"""Feeds damaged and hostile states to everything that reads one: only ``StateError`` may come out.

Two thirds of the examples are blobs with bytes changed, cut, moved or added; the others are states
with a field replaced, removed or added, packed again with a valid checksum or given as they are.
"""

import argparse
import copy
import logging
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from odb_nodes import (
    AlignNode,
    Cost,
    GroupingNode,
    Packed,
    SampleMapper,
    SamplerView,
    StateError,
    StreamView,
    describe_state,
    pack_states,
    reshard_states,
    unpack_states,
    verify_states,
)
from odb_nodes.batching.layout import Layout
from odb_nodes.state.description import align_state

_MEMORY = 16 << 30  # address space; far more than any example may need
_SLOW_S = 2.0
_PACKED = Packed(rows=2, cost=Cost(1.0, 0.1))
_ROWS = [
    {"input_ids": np.full(1 + i * 7 % 23, i), "labels": [i] * (1 + i * 7 % 23)} for i in range(60)
]


def position_node(layout: Layout | str = "padded") -> AlignNode:
    """A pipeline whose states hold positions."""
    view = SamplerView(len(_ROWS))
    return AlignNode(GroupingNode(SampleMapper(view, _ROWS), 40, window=8, layout=layout))


def content_node() -> AlignNode:
    """A pipeline whose states hold content."""
    return AlignNode(GroupingNode(StreamView(_ROWS), 40, window=8))


def state_after(node: AlignNode, steps: int) -> dict[str, Any]:
    """The node's state after some steps of its first epoch."""
    node.reset(None)
    for _ in range(steps):
        next(node)
    return node.state_dict()


class Target:
    """Everything that reads states.

    Attributes:
        seeds: Valid lists of states to start from.
        blobs: The same, packed.
        outcomes: Examples by how they ended.
    """

    def __init__(self) -> None:
        packed = position_node(_PACKED)
        one, content = state_after(position_node(), 5), state_after(content_node(), 5)
        self.seeds = [[one], [content], reshard_states([one], 3), [state_after(packed, 2)]]
        self.blobs = [pack_states(states) for states in self.seeds]
        self.outcomes: Counter[str] = Counter()
        self._nodes = [position_node(), content_node(), packed]

    def read_blob(self, blob: bytes) -> None:
        """Unpack a blob and use what is in it."""
        self.read_states(unpack_states(blob))

    def read_states(self, states: list[Any]) -> None:
        """Describe, verify, reshard and load states."""
        self._each(*(partial(describe_state, state) for state in states))
        self._each(lambda: reshard_states(states, 2), lambda: _verify(states))
        if states and (self._readable(states[0]) or self.outcomes.total() % 16 == 0):
            for node in self._nodes:
                self._each(partial(node.reset, states[0]))

    def _readable(self, state: Any) -> bool:
        """A ``reset`` checks the same fields first: it need not refuse every example again."""
        before = self.outcomes["accepted"]
        self._each(lambda: align_state(state))
        return self.outcomes["accepted"] > before

    def _each(self, *readers: Callable[[], Any]) -> None:
        for reader in readers:
            try:
                reader()
                self.outcomes["accepted"] += 1
            except StateError:
                self.outcomes["refused"] += 1


def _verify(states: list[Any]) -> None:
    """``verify_states`` walks the epoch, so its length is looked at first, as its callers must."""
    told = describe_state(states[0]) if states else {"num_samples": 0}
    if told["num_samples"] == len(_ROWS):
        verify_states(states)


def mutate_blob(blob: bytes, rng: random.Random) -> bytes:
    """The blob with bytes changed, cut, moved or added."""
    raw = bytearray(blob)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at, kind = rng.randrange(len(raw) + 1), rng.randrange(6)
        if kind == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            del raw[at : at + rng.randrange(1, 40)]
        elif kind == 3:
            raw[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif kind == 4:
            other = rng.randrange(len(raw) + 1)
            raw[at:at] = raw[other : other + rng.randrange(1, 200)]
        else:
            raw[:8] = rng.randrange(1 << rng.choice([8, 16, 33, 64])).to_bytes(8, "little")
    return bytes(raw)


def _nested(depth: int) -> list[Any]:
    in_lists: Any = 0
    in_dicts: Any = 0
    for _ in range(depth):
        in_lists, in_dicts = [in_lists], {"source": in_dicts}
    return [in_lists, in_dicts]


_DEEP = _nested(3) + _nested(200) + _nested(5000)


def _hostile(rng: random.Random) -> Any:
    return rng.choice(
        [None, True, False, -1, 0, 1, 7, 1 << 31, (1 << 62) - 1, 1 << 63, 1 << 64, -(1 << 200)]
        + [0.5, float("inf"), float("nan"), "", "state", "\ud800", "x" * 300, b"", b"\xff" * 8]
        + [bytes(8), bytes(7), bytes(800), [], {}, [[]], [-1], [1 << 61], [b""], [b"x" * 9], ["x"]]
        + [{"$bytes": 8}, {"counts": {}}, [1] * 500, *_DEEP]
    )


def _spots(value: Any, found: list[tuple[Any, Any]], depth: int = 30) -> None:
    keys: Any = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list) and depth:
            _spots(value[key], found, depth - 1)


def mutate_states(states: list[Any], rng: random.Random) -> list[Any]:
    """The states with fields replaced, removed, added or exchanged."""
    states = copy.deepcopy(states)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        spots: list[tuple[Any, Any]] = []
        _spots(states, spots)
        if not spots:
            break
        (parent, key), (other, other_key) = rng.choice(spots), rng.choice(spots)
        kind = rng.randrange(8)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[rng.choice(["x", "", "$bytes", "version", "source", 5])] = _hostile(rng)
        elif kind == 2:
            parent[key] = other[other_key]
        elif kind == 3 and isinstance(parent[key], int):
            parent[key] += rng.choice([-1, 1, 1 << 40])
        elif kind == 4 and isinstance(parent[key], bytes):
            parent[key] = mutate_blob(parent[key], rng)
        else:
            parent[key] = _hostile(rng)
    return states


def run_example(target: Target, rng: random.Random) -> None:
    """One example; raises what should not have come out."""
    if rng.random() < 0.7:
        target._each(lambda: target.read_blob(mutate_blob(rng.choice(target.blobs), rng)))
        return
    states = mutate_states(rng.choice(target.seeds), rng)
    target.read_states(states)
    target._each(lambda: target.read_blob(_pack(states)))


def _pack(states: list[Any]) -> bytes:
    try:
        return pack_states(states)
    except (UnicodeEncodeError, RecursionError) as error:  # packing is ours, not an attacker's
        raise StateError(repr(error)) from None


def fuzz(examples: int, seed: int, told: Callable[[str], None]) -> int:
    """Run examples; returns how many failed. ``told`` gets failures and progress lines."""
    target, failures, shown = Target(), 0, time.monotonic()
    for number in range(examples):
        started = time.process_time()  # other work on the machine is not its fault
        try:
            run_example(target, random.Random(f"{seed}-{number}"))
            took = time.process_time() - started
            problem, failed = f"took {took:.1f} s", took > _SLOW_S
        except Exception as error:
            problem, failed = f"{type(error).__name__}: {error!s:.200}", True
        if failed:
            failures += 1
            told(f"example {number} (--seed {seed}): {problem}")
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            told(f"{number + 1} of {examples} examples, {failures} failures")
    told(f"examples={examples} failures={failures} {dict(target.outcomes)}")
    return failures


def main() -> int:
    """Command line; exit code 1 if an example failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # changed settings are a warning, and half of the examples
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
    return int(fuzz(args.examples, args.seed, lambda line: print(line, flush=True)) > 0)


if __name__ == "__main__":
    sys.exit(main())

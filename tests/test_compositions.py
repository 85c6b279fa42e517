"""Random compositions of nodes, settings, saves and loads: exact, or refused in clear words.

ODB_COMPOSITIONS says how many; a few hundred fit into a minute.
"""

import os
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchdata.nodes import Batcher, IterableWrapper, Mapper, ParallelMapper, Prefetcher, Unbatcher

from odb_nodes import (
    AlignNode,
    GroupingNode,
    OdbLoader,
    PadCollate,
    SampleMapper,
    SamplerView,
    StreamView,
    reshard_states,
)
from odb_nodes.testing import InProcessWorld
from tests.helpers import Tokens, batches_and_state, random_lengths, same_batches
from tests.nodes.test_graphs import Filter, same, tokens_of

EXAMPLES = int(os.environ.get("ODB_COMPOSITIONS", "60"))
COUNT = 24
DATA = Tokens(random_lengths(COUNT, longest=40))
ROWS = [DATA[index] for index in range(COUNT)]

SETTINGS = {
    "budget": st.sampled_from([48, 96, 150]),
    "window": st.integers(1, 12),
    "policy": st.sampled_from(["sliding", "tumbling"]),
    "steps_per_round": st.sampled_from([None, 1, 3]),
}
GRAPHS = {
    "source": st.sampled_from(["mapper", "mapper", "stream", "list"]),
    "between": st.lists(
        st.sampled_from(["filter", "map", "threads", "prefetch", "rare", "batch"]), max_size=3
    ),
    "threads": st.sampled_from([0, 0, 1]),
    "prefetch": st.sampled_from([0, 0, 1]),
    "join": st.booleans(),
    "quota": st.sampled_from([None, None, 9, 40]),
}


def wrapped(node: Any, kind: str) -> Any:
    if kind == "filter":
        return Filter(node, lambda item: int(tokens_of(item)[0]) % 5 != 0)
    if kind == "batch":
        return Unbatcher(Batcher(node, 3, drop_last=False))
    if kind == "map":
        return Mapper(node, same)
    if kind == "threads":
        return ParallelMapper(node, same, num_workers=1)
    return Prefetcher(node, 2, snapshot_frequency=1 if kind == "prefetch" else 3)


def build(graph: dict[str, Any], options: dict[str, Any], rank: int, transport: Any) -> OdbLoader:
    size = transport.world_size
    node: Any
    if graph["source"] == "mapper":
        view = SamplerView(COUNT, rank=rank, world_size=size)
        node = SampleMapper(view, DATA, num_workers=graph["threads"])
    else:
        make: Any = StreamView if graph["source"] == "stream" else IterableWrapper
        node = make(ROWS[rank::size])
    for kind in graph["between"]:
        node = wrapped(node, kind)
    groups = GroupingNode(node, options["budget"], window=options["window"])
    align = AlignNode(
        groups,
        transport=transport,
        timeout_s=20,
        join=graph["join"],
        sample_quota=graph["quota"],
        policy=options["policy"],
        steps_per_round=options["steps_per_round"],
    )
    return OdbLoader(align, collate=PadCollate(), prefetch=graph["prefetch"])


def run(make: Any, states: Any, steps: int | None, rank: int, transport: Any) -> Any:
    """Batches, and the state after them."""
    with make(rank, transport) as loader:
        return batches_and_state(loader, None if states is None else states[rank], steps)


def ids(batches: Any) -> list[int]:
    rows = (batch.tensors["input_ids"][:, 0].tolist() for batch in batches if not batch.info.idle)
    return list(chain(*rows))


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
@given(
    graph=st.fixed_dictionaries(GRAPHS),
    first=st.fixed_dictionaries(SETTINGS),
    second=st.fixed_dictionaries(SETTINGS),
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=2),
)
def test_a_random_composition_is_exact_or_refused(
    graph: dict[str, Any],
    first: dict[str, Any],
    second: dict[str, Any],
    sizes: tuple[int, int],
    cuts: list[int],
) -> None:
    size = sizes[0]
    make = partial(build, graph, first)
    whole = [
        batches
        for batches, _ in InProcessWorld(size, timeout_s=200).run(partial(run, make, None, None))
    ]
    states, heads = None, [[] for _ in range(size)]  # type: ignore[var-annotated]
    for steps in cuts:
        if len(heads[0]) + steps < len(whole[0]):
            found = InProcessWorld(size, timeout_s=200).run(partial(run, make, states, steps))
            heads = [head + batches for head, (batches, _) in zip(heads, found, strict=True)]
            states = [state for _, state in found]
    found = InProcessWorld(size, timeout_s=200).run(partial(run, make, states, None))
    for head, (rest, _), expected in zip(heads, found, whole, strict=True):
        assert same_batches(head + rest, expected)
    if states is None or graph["quota"] is not None or not graph["join"]:
        return
    seen = list(chain(*map(ids, whole)))
    reshards = graph["source"] == "mapper" and not graph["between"]
    if reshards:
        size = sizes[1]
        states = reshard_states(states, size)
    changed = partial(build, graph, second)
    found = InProcessWorld(size, timeout_s=200).run(partial(run, changed, states, None))
    after = [*chain(*map(ids, heads)), *chain(*(ids(batches) for batches, _ in found))]
    assert sorted(after) == sorted(seen)

"""Another world size within an epoch: nothing lost, nothing repeated, however often it changes."""

import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from odb_nodes import (
    AlignNode,
    GroupingNode,
    SampleMapper,
    SamplerView,
    StateError,
    describe_state,
    pack_states,
    reshard_states,
    verify_states,
)
from odb_nodes.state.cursor import unpack_positions
from odb_nodes.testing import InProcessTransport
from tests.helpers import Tokens, random_lengths

HISTORIES = int(os.environ.get("ODB_HISTORIES", "160"))  # thousands take minutes


class Relay:
    """Ranks of one world that take turns: each runs up to its next collective, then the next one.

    No two run at once, so there is nothing to wait for: many times faster than a barrier.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.meeting = self
        self.transports = [InProcessTransport(self, rank) for rank in range(size)]  # type: ignore[arg-type]
        self._turn = [threading.Lock() for _ in range(size)]
        self._alive = set(range(size))
        self._values: dict[int, dict[int, Any]] = {}  # by number of the collective
        self._count = [0] * size

    def meet(self, rank: int, shown: tuple[str, Any], what: str) -> list[Any]:
        number = self._count[rank]
        self._count[rank] += 1
        values = self._values.setdefault(number, {})
        values[rank] = shown
        if len(values) < self.size:
            self._pass_on(rank)
        assert len(values) == self.size, f"rank {rank} waits for ranks that are gone"
        assert len({kind for kind, _ in values.values()}) == 1, f"different collectives: {values}"
        self._values.pop(number - 1, None)
        return [values[r][1] for r in range(self.size)]

    def _pass_on(self, rank: int) -> None:
        after = [r for r in self._alive if r > rank]
        turn = min(after or self._alive)
        if turn != rank:
            self._turn[turn].release()
            self._turn[rank].acquire()

    def run(self, work: Any) -> list[Any]:
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def body(rank: int) -> None:
            self._turn[rank].acquire()
            try:
                results[rank] = work(rank, self.transports[rank])
            except BaseException as error:
                errors.append(error)
            self._alive.discard(rank)
            if self._alive:
                self._turn[
                    min((r for r in self._alive if r > rank), default=min(self._alive))
                ].release()

        threads = [threading.Thread(target=body, args=(r,), daemon=True) for r in range(self.size)]
        for lock in self._turn:
            lock.acquire()
        for thread in threads:
            thread.start()
        self._turn[0].release()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "a rank hangs"
        if errors:
            raise errors[0]
        return results


class History:
    """One dataset and one kind of run, whose world size changes as it goes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = rng.choice([0, 1, 3, 7, 20, 40, 60])
        self.join = rng.random() < 0.6
        self.quota = rng.choice([None, None, rng.randrange(1, 150)])
        self.policy = rng.choice(["sliding", "tumbling"])
        self.data = Tokens(random_lengths(self.count, seed=rng.randrange(9), longest=40))
        self.states: list[Any] | None = None
        self.seen: Counter[tuple[int, int]] = Counter()  # (epoch, position)
        self.over = False

    def node(self, rank: int, size: int, transport: Any) -> AlignNode:
        rng = self.rng
        view = SamplerView(self.count, rank=rank, world_size=size)
        samples = SampleMapper(view, self.data)
        return AlignNode(
            GroupingNode(samples, self.budget, window=self.window),
            process_group=transport,
            join=self.join,
            policy=self.policy,
            sample_quota=self.quota,
            steps_per_round=self.per_round,
            idle=rng.choice(["emit"]),
        )

    def segment(self, size: int, steps: int | None) -> None:
        """Go on with ``size`` ranks for some steps, or to the end of the iteration."""
        if self.states is not None and len(self.states) != size:
            self.states = reshard_states(self.states, size)
        self.budget, self.window = self.rng.choice([40, 60]), self.rng.choice([2, 5, 16])
        self.per_round = self.rng.choice([None, 1, 3])
        states = self.states

        def work(rank: int, transport: Any) -> tuple[list[Any], Any, bool]:
            node = self.node(rank, size, transport)
            node.reset(None if states is None else states[rank])
            views: list[Any] = []
            done = 0
            while steps is None or done < steps:
                try:
                    group = next(node)
                except StopIteration:
                    return views, node.state_dict(), True
                views += [(view.epoch, view.position) for view in group.info.views]
                done += 1
            return views, node.state_dict(), False

        world = Relay(size)
        results = world.run(work)
        assert len({over for _, _, over in results}) == 1
        for views, _, _ in results:
            self.seen.update(views)
        self.states, self.over = [state for _, state, _ in results], results[0][2]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_histories_of_world_sizes_deliver_every_position_once(part: int) -> None:
    for number in range(part, HISTORIES, 4):
        history = History(random.Random(number))
        rng, joined = history.rng, history.join
        for _ in range(rng.randrange(1, 5)):
            history.segment(rng.randrange(1, 9), rng.choice([0, 0, 1, 2, 3, 5, 9, 30]))
            assert max(history.seen.values(), default=1) == 1, f"history {number}: a repeat"
            if history.quota is None:
                assert verify_states(history.states or []) == "exact", f"history {number}"
        history.segment(rng.randrange(1, 9), None)
        assert history.over
        assert max(history.seen.values(), default=1) == 1, f"history {number}: a repeat"
        last = describe_state((history.states or [])[0])["epoch"]
        whole = range(last if history.quota else last + 1) if joined else ()
        for epoch in whole:
            got = {p for e, p in history.seen if e == epoch}
            assert got == set(range(history.count)), f"history {number}: epoch {epoch} lost some"
        if history.quota and history.count and joined:
            assert sum(history.seen.values()) >= history.quota


@pytest.mark.parametrize("old", range(1, 9))
@pytest.mark.parametrize("new", range(1, 9))
def test_every_change_between_1_and_8_ranks_keeps_the_epoch(old: int, new: int) -> None:
    history = History(random.Random(old * 8 + new))
    history.count, history.join, history.quota = 50, True, None
    history.data = Tokens(random_lengths(50, longest=40))
    history.segment(old, 1)
    history.segment(new, None)
    assert history.seen == Counter({(0, p): 1 for p in range(50)})


@pytest.mark.slow
def test_a_state_stays_small_after_many_changes() -> None:
    history = History(random.Random(3))
    history.count, history.join, history.quota = 4000, True, None
    history.data = Tokens(random_lengths(4000, longest=40))
    sizes = []
    for number in range(24):
        history.segment(1 + number % 8, 3)
        states = history.states or []
        # 8 bytes per position taken early or not at all, of the rows the ranks had reached.
        sizes.append(max(len(pack_states([state])) for state in states))
    assert verify_states(history.states or []) == "exact"
    assert max(sizes) < 4096, sizes
    history.segment(5, None)
    assert history.seen == Counter({(0, p): 1 for p in range(4000)})


def some_states(size: int = 2, **changes: Any) -> list[Any]:
    history = History(random.Random(1))
    history.count, history.join, history.quota = 60, True, None
    history.data = Tokens(random_lengths(60, longest=40))
    for name, value in changes.items():
        setattr(history, name, value)
    history.segment(size, 2)
    return history.states or []


def test_the_states_of_some_ranks_are_refused_by_name() -> None:
    states = some_states(3)
    for few in (states[:1], states[1:], [states[0]] * 3, [*states, states[0]]):
        with pytest.raises(StateError, match="ranks 0 to 2, each once, got"):
            reshard_states(few, 2)
    with pytest.raises(StateError, match="got none"):
        reshard_states([], 2)
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        reshard_states(states, 0)


def changed(state: Any, path: str, value: Any) -> Any:
    key, _, rest = path.partition("/")
    return {**state, key: changed(state[key], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("counters/steps", 99, "steps is"),
        ("quota_done", 9, "quota_done is"),
        ("settings/window", 77, "settings is"),
        ("source/source/view/seed", 5, "seed is"),
        ("source/source/view/shuffle", False, "shuffle is"),
        ("source/source/view/cursor/num_samples", 61, "dataset length is"),
        ("source/source/view/cursor/tail_start", 1, "first strided position is"),
    ],
)
def test_states_of_different_moments_are_refused_naming_both(
    path: str, value: Any, word: str
) -> None:
    first, second = some_states(2)
    with pytest.raises(StateError, match=f"not of one moment: {word} .* by rank"):
        reshard_states([first, changed(second, path, value)], 3)


def test_states_whose_samples_do_not_add_up_are_refused() -> None:
    first, second = some_states(2)
    held = second["source"]["held"]
    assert held
    with pytest.raises(StateError, match="do not make the epoch of 60"):
        reshard_states([first, changed(second, "source/held", held[8:])], 3)


def test_states_with_content_are_refused_with_the_reason() -> None:
    from tools.fuzz import content_node, state_after

    with pytest.raises(StateError, match="cannot rebuild samples"):
        reshard_states([state_after(content_node(), 3)], 2)


def test_something_else_is_no_state() -> None:
    for other in (None, 3, "x", {}, {"root": {"num_yielded": 3}}, [1]):
        with pytest.raises(StateError, match="no state of an AlignNode"):
            reshard_states([other], 2)


def test_resharding_changes_no_old_state_and_shares_nothing_with_it() -> None:
    import copy

    states = some_states(3)
    before = copy.deepcopy(states)
    new = reshard_states(states, 2)
    new[0]["counters"]["steps"] = 1000
    new[0]["source"]["drops"]["counts"].append(["x", 1])
    new[0]["settings"]["window"] = 1
    assert states == before
    assert new[1]["settings"] == states[0]["settings"]
    assert reshard_states(states[::-1], 2)[1] == reshard_states(before, 2)[1]


def worked_example() -> tuple[list[Any], list[Any]]:
    """The states of docs/state.md: 4 ranks after 2 steps, and what 3 ranks make of them."""
    data = Tokens([5 + index % 4 for index in range(40)])

    def work(rank: int, transport: Any) -> Any:
        samples = SampleMapper(SamplerView(40, rank=rank, world_size=4, shuffle=False), data)
        groups = GroupingNode(samples, 16, window=3)
        node = AlignNode(groups, process_group=transport, steps_per_round=3)
        for _ in range(2):
            next(node)
        return node.state_dict()

    olds = Relay(4).run(work)
    return olds, reshard_states(olds, 3)


def positions_in(packed: bytes) -> str:
    return " ".join(map(str, unpack_positions(packed, 1 << 62, "x").tolist())) or "-"


def test_the_worked_example_of_the_documentation_is_what_the_code_does() -> None:
    olds, news = worked_example()
    text = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
    for state in olds + news:
        cursor = state["source"]["source"]["view"]["cursor"]
        row = [
            state["rank"],
            cursor["taken"],
            positions_in(cursor["leftovers"]),
            cursor["tail_start"],
            positions_in(state["source"]["held"]),
            positions_in(state["pending"]["refs"]),
            state["counters"]["emitted"],
        ]
        line = "| " + " | ".join(map(str, row)) + " |"
        assert line in text, line
    assert verify_states(olds, 40) == verify_states(news, 40) == "exact"

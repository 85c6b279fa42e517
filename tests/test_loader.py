"""The assembled pipeline: coverage, resume at every step, other settings on either side."""

from functools import partial
from typing import Any

import pytest

from odb_nodes import CoverageError, StateError, describe_state, odb_loader
from tests.helpers import Tokens, positions, random_lengths, run_loaders, same_batches


def build(count: int = 97, **changes: Any) -> Any:
    settings: dict[str, Any] = {"token_budget": 256, "window": 16, "prefetch": 0}
    return odb_loader(Tokens(random_lengths(count)), **{**settings, **changes})


@pytest.mark.parametrize("policy", ["sliding", "tumbling"])
@pytest.mark.parametrize("count", [0, 1, 5, 97])
def test_an_epoch_holds_every_sample_once_within_the_budget(policy: str, count: int) -> None:
    with build(count, policy=policy) as loader:
        batches = list(loader)
    assert sorted(positions(batches)) == list(range(count))
    for batch in batches:
        assert batch.info.padded_tokens <= 256
        assert batch.tensors["input_ids"].numel() == batch.info.padded_tokens
        assert batch.info.total_num_samples == batch.info.num_samples == len(batch.info.views)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sliding", "tumbling"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_resume_at_every_step_is_bit_identical_for_two_epochs(policy: str, prefetch: int) -> None:
    with build(policy=policy) as loader:
        first, second = list(loader), list(loader)
    assert positions(first) != positions(second)
    for step in range(len(first) + 1):
        with build(policy=policy, prefetch=prefetch) as saver:
            iterator = iter(saver)
            head = [next(iterator) for _ in range(step)]
            state = saver.state_dict()
        with build(policy=policy) as loader:
            loader.load_state_dict(state)
            rest = list(loader)
            if step == len(first):
                assert same_batches(rest, second)
            else:
                assert same_batches(head + rest, first)
                assert same_batches(list(loader), second)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("policy", ["sliding", "tumbling"])
def test_resume_at_every_step_on_several_ranks(size: int, policy: str) -> None:
    def run(states: list[Any] | None, stop: int | None) -> list[tuple[list[Any], Any]]:
        return run_loaders(size, partial(build, 41, policy=policy), states, stop)

    whole = [batches for batches, _ in run(None, None)]
    assert len({len(batches) for batches in whole}) == 1
    assert sorted(p for batches in whole for p in positions(batches)) == list(range(41))
    for step in range(1, len(whole[0])):
        saved = run(None, step)
        rest = run([state for _, state in saved], None)
        for rank in range(size):
            assert same_batches(saved[rank][0] + rest[rank][0], whole[rank])


def test_a_state_of_other_data_is_refused() -> None:
    with build(50) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for changes, word in (({"count": 51}, "length"), ({"seed": 1}, "seed")):
        with build(**{"count": 50, **changes}) as other, pytest.raises(StateError, match=word):
            other.load_state_dict(state)


def test_changed_settings_lose_and_repeat_nothing() -> None:
    for step in (1, 4, 9):
        with build() as loader:
            iterator = iter(loader)
            head = [next(iterator) for _ in range(step)]
            state = loader.state_dict()
        for changes in ({"token_budget": 150}, {"window": 5}, {"policy": "tumbling"}):
            with build(**changes) as loader:
                loader.load_state_dict(state)
                rest = list(loader)
            assert sorted(positions(head) + positions(rest)) == list(range(97))


def test_a_state_that_lost_a_sample_fails_the_coverage_check() -> None:
    with build() as loader:
        next(iter(loader))
        state = loader.state_dict()
    state["source"]["held"] = state["source"]["held"][8:]
    with build() as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="window had 245 tokens, they have 240 now"):
            list(loader)
    state["source"]["held_tokens"] = state["source"]["held_loss_tokens"] = None  # as in version 1
    with build() as loader:
        loader.load_state_dict(state)
        with pytest.raises(CoverageError, match="not this rank's views"):
            list(loader)


def test_describe_state_counts_every_sample() -> None:
    with build() as loader:
        for step, batch in enumerate(loader, 1):
            told = describe_state(loader.state_dict())
            assert told["steps"] == step
            assert told["emitted"] + told["remaining"] == told["num_samples"] == 97
            assert batch.info.step == step - 1


def test_a_state_loaded_after_one_was_taken_is_not_ignored() -> None:
    with build() as loader:
        iterator = iter(loader)
        head = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
    with build() as loader:
        loader.state_dict()  # as torch.distributed.checkpoint does before it loads
        loader.load_state_dict(state)
        assert sorted(positions(head) + positions(list(loader))) == list(range(97))

"""A loader knows where it stands: epochs, ends, peeks, breaks, and states that are loaded."""

import logging
from typing import Any

import pytest

from odb_nodes import OdbLoader, StateError, describe_state, optimizer_steps
from tests.helpers import positions, same_batches
from tests.states import COUNT, build, run, state_after, whole_epoch


def epochs_of(loader: OdbLoader, num_epochs: int) -> list[tuple[int, list[int]]]:
    """Every epoch that is trained, with the epochs of its batches."""
    return [
        (epoch, sorted({batch.info.epoch for batch in loader}))
        for epoch in loader.epochs(num_epochs)
    ]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_epochs_are_each_trained_once_wherever_a_resume_stands(prefetch: int) -> None:
    steps = len(whole_epoch())
    for step in (0, 1, steps - 1, steps):
        with build(prefetch=prefetch) as loader:
            next_epoch = iter(loader)
            head = [next(next_epoch) for _ in range(step)]
            state = loader.state_dict()
        with build(prefetch=prefetch) as loader:
            loader.load_state_dict(state)
            rest = [(epoch, list(loader)) for epoch in loader.epochs(3)]
        assert [epoch for epoch, _ in rest] == [0, 1, 2]
        for epoch, batches in rest:
            assert {batch.info.epoch for batch in batches} <= {epoch}
            seen = positions((head if epoch == 0 else []) + batches)
            assert sorted(seen) == list(range(COUNT)), (step, epoch)


def test_epochs_after_a_state_of_an_end_begin_with_the_next_one() -> None:
    with build() as loader:
        list(loader)
        assert loader.finished
        state = loader.state_dict()
    assert describe_state(state)["ended"]
    with build() as loader:
        loader.load_state_dict(state)
        assert (loader.epoch, loader.finished) == (0, True)
        assert epochs_of(loader, 3) == [(1, [1]), (2, [2])]
        assert epochs_of(loader, 3) == []


def test_epochs_on_a_new_loader_after_one_and_with_loops_that_are_left_early() -> None:
    with build() as loader:
        assert epochs_of(loader, 2) == [(0, [0]), (1, [1])]
        left = []
        for epoch in loader.epochs(5):
            for batch in loader:
                left.append((epoch, batch.info.epoch))
                break
        assert left == [(2, 2), (3, 3), (4, 4)]
        assert list(loader.epochs(7)) == [5, 6]  # nothing read: no epoch comes twice


@pytest.mark.parametrize("restart", [True, False])
def test_restart_decides_what_follows_a_state_of_the_end(
    restart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with build() as loader:
        first, second = list(loader), list(loader)
    for ended in (True, False):
        with build() as loader:
            iterator = iter(loader)
            for _ in first:
                next(iterator)
            if ended:
                assert next(iterator, None) is None
            state = loader.state_dict()
        with build(restart=restart) as loader, caplog.at_level(logging.INFO):
            loader.load_state_dict(state)
            batches = list(loader)
            assert same_batches(batches, second) if restart else batches == []
            assert same_batches(list(loader), second) is not restart
    assert ("end of epoch 0" in caplog.text) is restart


def test_set_epoch_never_trains_an_epoch_twice_or_leaves_one_out_in_silence() -> None:
    steps = len(whole_epoch())
    _, middle = state_after(2)
    _, last = state_after(steps)
    with build() as loader:
        loader.load_state_dict(middle)
        for wrong in (1, 5):
            with pytest.raises(ValueError, match=r"set_epoch\(\d\) contradicts the loaded state"):
                loader.set_epoch(wrong)
        loader.set_epoch(0)
        assert sum(batch.info.num_samples for batch in loader) < COUNT
        loader.set_epoch(1)
        assert {batch.info.epoch for batch in loader} == {1}
    with build() as loader:
        loader.load_state_dict(last)
        loader.set_epoch(0)  # as a script does that counts epochs itself
        assert list(loader) == []
        loader.set_epoch(1)
        assert sorted(positions(list(loader))) == list(range(COUNT))
    with build() as loader:
        loader.load_state_dict(last)
        loader.set_epoch(1)
        assert {batch.info.epoch for batch in loader} == {1}


def test_epoch_step_and_finished_follow_the_batches_and_the_states() -> None:
    steps = len(whole_epoch())
    with build() as loader:
        assert (loader.step, loader.finished) == (0, False)
        for epoch in range(2):
            for step, _ in enumerate(loader, 1):
                assert (loader.epoch, loader.step, loader.finished) == (epoch, step, False)
            assert (loader.epoch, loader.step, loader.finished) == (epoch, steps, True)
    _, state = state_after(3)
    with build() as loader:
        loader.load_state_dict(state)
        assert (loader.epoch, loader.step, loader.finished) == (0, 3, False)


def test_a_state_that_does_not_fit_is_reported_by_load_state_dict() -> None:
    _, state = state_after(2)
    for changes in ({"seed": 3}, {"shuffle": False}, {"rng_seed": 1}):
        with build(**changes) as loader, pytest.raises(StateError):
            loader.load_state_dict(state)
    with build(dataset_id="a") as loader:
        run(loader, 1)
        named = loader.state_dict()
    with build(dataset_id="b") as loader:
        with pytest.raises(StateError, match="dataset_id 'a', this run has 'b'"):
            loader.load_state_dict(named)
        loader.load_state_dict(state)  # of data without a name
        assert list(loader)


def test_after_a_load_state_dict_gives_the_loaded_place_also_on_a_used_loader() -> None:
    head, state = state_after(2)
    with build() as loader:
        run(loader, 4)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert loader.state_dict() is not loader.state_dict()
        assert same_batches(head + list(loader), whole_epoch())


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_peek_uses_up_nothing(prefetch: int) -> None:
    whole = whole_epoch()
    with build(prefetch=prefetch) as loader:
        assert same_batches([loader.peek(), loader.peek()], [whole[0], whole[0]])
        assert describe_state(loader.state_dict())["emitted"] == 0
        assert same_batches(list(loader), whole)
        assert loader.peek().info.epoch == 1
        assert {batch.info.epoch for batch in loader} == {1}
    _, state = state_after(3)
    with build(prefetch=prefetch) as loader:
        loader.load_state_dict(state)
        assert same_batches([loader.peek()], whole[3:4])
        assert loader.state_dict()["counters"]["steps"] == 3
        assert same_batches(list(loader), whole[3:])


def test_a_break_goes_on_in_the_next_epoch_and_says_what_was_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with build() as loader, caplog.at_level(logging.INFO):
        for _ in loader:
            break
        assert {batch.info.epoch for batch in loader} == {1}
        assert "epoch 0 was left after step 1" in caplog.text
        head = run(loader, 2)
        loader.load_state_dict(loader.state_dict())  # the documented way to go on in it
        rest = list(loader)
    assert sorted(positions(head + rest)) == list(range(COUNT))


def test_an_iterator_that_another_took_the_place_of_is_an_error() -> None:
    with build() as loader:
        old = iter(loader)
        next(old)
        iter(loader)
        with pytest.raises(RuntimeError, match="a later iter"):
            next(old)


def test_the_states_of_an_optimizer_step_count_what_is_trained() -> None:
    for stop in (0, 1, 3):
        trained: list[Any] = []
        with build() as loader:
            for step in optimizer_steps(loader, 3):
                if len(trained) == 3 * stop:
                    before, after = step.previous_state, step.state
                    trained_now = list(step)
                    break
                trained += step
        for state, done in ((before, trained), (after, trained + trained_now)):
            with build() as loader:
                loader.load_state_dict(state)
                assert sorted(positions(done + list(loader))) == list(range(COUNT))


def test_len_raises_with_the_reason_and_estimates_come_close() -> None:
    with build() as loader:
        with pytest.raises(TypeError, match=r"estimate\(\)"):
            len(loader)
        assert loader.estimate() is None
        steps = len(whole_epoch())
        for done, _ in enumerate(loader, 1):
            estimate, progress = loader.estimate(), loader.progress()
            assert estimate is not None
            assert progress is not None
            if done > 3:
                assert abs(done + estimate - steps) <= 0.3 * steps + 1
                assert abs(progress - done / steps) < 0.3
        assert (loader.estimate(), loader.progress()) == (0, 1.0)


def test_progress_counts_dropped_samples() -> None:
    def only_even(row: dict[str, Any]) -> dict[str, Any] | None:
        return row if row["input_ids"][0] % 2 == 0 else None

    with build(transform=only_even) as loader:
        for _ in loader:
            pass
        assert loader.progress() == 1.0


def test_a_report_tells_padding_fill_and_waiting() -> None:
    with build() as loader:
        batches = list(loader)
        report = loader.report()
    tokens = sum(batch.info.num_tokens for batch in batches)
    padded = sum(batch.info.padded_tokens for batch in batches)
    assert report.steps == len(batches)
    assert report.padding == pytest.approx(1 - tokens / padded)
    assert report.fill == pytest.approx(tokens / len(batches) / 256)
    assert 0 <= report.waiting <= 1
    assert report.suggested_window >= 16
    assert loader.exchange_stats() == {"bytes": 0, "rounds": 0, "wait_s": 0.0, "ranks": 1}


def test_an_empty_epoch_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with build(transform=lambda row: None) as loader:
        assert list(loader) == []
    assert "dropped all of them: {'filtered': 90}" in caplog.text
    caplog.clear()
    with build([]) as loader:
        assert list(loader) == []
    assert "this rank read nothing" in caplog.text


def test_without_shuffling_every_epoch_has_the_same_batches_in_the_same_order() -> None:
    for policy in ("sliding", "tumbling"):
        with build(shuffle=False, policy=policy) as loader:
            first, second = list(loader), list(loader)
        assert [positions([b]) for b in first] == [positions([b]) for b in second]
        with build(policy=policy) as loader:
            first, second = list(loader), list(loader)
        assert [positions([b]) for b in first] != [positions([b]) for b in second]

"""What the protocol must achieve on four workloads: steps, padding, order in time, waiting."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.data.workloads import SHORTEST, WORKLOADS, fewest_groups, fewest_steps
from tools.simulate import REPORT_BYTES, TOTAL_BYTES, Result, Setting, deal, main, simulate

SEEDS = (0, 1, 2)
NAMES = list(WORKLOADS)
# Padding in percent that a tumbling-window loader was measured to have, one process, by window.
OTHER_PADDING = {
    64: {"ultrachat": 11.4, "llava": 14.9, "sharegpt4o": 12.3, "mmmix": 22.8},
    256: {"ultrachat": 4.4, "llava": 5.7, "sharegpt4o": 4.9, "mmmix": 9.7},
    1024: {"ultrachat": 1.3, "llava": 1.8, "sharegpt4o": 1.5, "mmmix": 3.2},
}
TABLE = {  # mean, coefficient of variation, p10, p50, p90, p99, longest
    "ultrachat": (1200, 0.47, 599, 1085, 1952, 3076, 4096),
    "llava": (603, 0.29, 424, 565, 826, 1188, 2048),
    "sharegpt4o": (1506, 1.01, 348, 1044, 3192, 7573, 14000),
    "mmmix": (664, 0.81, 203, 441, 1428, 2404, 4906),
}


def on_ranks(name: str, samples: int, ranks: int, seed: int, setting: Setting) -> Result:
    return simulate(deal(WORKLOADS[name].draw(samples, seed), ranks), setting)


@pytest.mark.parametrize("name", NAMES)
def test_workloads_have_the_shape_they_are_said_to_have(name: str) -> None:
    lengths = WORKLOADS[name].draw(200_000, seed=1)
    mean, variation, *quantiles, longest = TABLE[name]
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert lengths.std() / lengths.mean() == pytest.approx(variation, rel=0.02)
    assert np.percentile(lengths, [10, 50, 90, 99]) == pytest.approx(quantiles, rel=0.03)
    assert lengths.max() == longest
    assert lengths.min() >= SHORTEST
    assert np.array_equal(lengths[:9], WORKLOADS[name].draw(200_000, seed=1)[:9])


def test_the_fewest_groups_and_steps_by_example() -> None:
    assert fewest_groups([3, 6, 20, 5, 3, 4], 12) == 3
    assert fewest_groups([], 12) == 0
    assert fewest_steps([[20, 20, 20], []], 12) == 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("window", "most"), [(64, 1.17), (256, 1.07), (1024, 1.015)])
def test_one_rank_stays_close_to_the_fewest_steps_and_pads_no_more_than_others(
    name: str, window: int, most: float
) -> None:
    results = [on_ranks(name, 4096, 1, seed, Setting(window=window)) for seed in SEEDS]
    if (name, window) == ("mmmix", 64):
        most = 1.30
    assert max(result.steps / result.fewest_steps for result in results) <= most
    padding = 100 * float(np.mean([result.padding for result in results]))
    assert padding <= OTHER_PADDING[window][name] + 0.5


def test_four_ranks_take_hardly_more_steps_than_the_busiest_alone() -> None:
    results = [on_ranks("sharegpt4o", 2001, 4, seed, Setting(window=256)) for seed in range(10)]
    assert max(result.steps / result.busiest_steps for result in results) <= 1.03
    # The rest is in the shares: no loader can move samples from one rank to another.
    assert float(np.mean([result.steps / result.fewest_steps for result in results])) <= 1.08
    assert 100 * max(result.padding for result in results) <= 4.8 + 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fewer"), [("sharegpt4o", 0.13), ("mmmix", 0.17)])
def test_64_ranks_take_fewer_steps_with_sliding_than_with_tumbling(name: str, fewer: float) -> None:
    for seed in SEEDS[:2]:
        sliding, tumbling = (
            on_ranks(name, 64_000, 64, seed, Setting(policy=policy, window=128))
            for policy in ("sliding", "tumbling")
        )
        assert sliding.steps <= (1 - fewer) * tumbling.steps
        assert sliding.slowest_over_mean < tumbling.slowest_over_mean


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_length_does_not_depend_on_the_place_in_the_epoch(name: str, seed: int) -> None:
    rank = on_ranks(name, 24 * 256, 1, seed, Setting(window=256)).ranks[0]
    lengths = [rank.lengths[age] for ages in rank.emitted for age in ages]
    correlation = np.corrcoef(np.arange(len(lengths)), lengths)[0, 1]
    assert abs(correlation) < 0.05


lengths_lists = st.lists(st.sampled_from([1, 1, 2, 3, 5, 8, 13, 20]), max_size=40)


@settings(deadline=None)
@given(
    shares=st.lists(lengths_lists, min_size=1, max_size=4),
    window=st.integers(1, 9),
    capacity=st.integers(1, 4),
)
def test_no_sample_waits_longer_than_two_windows_and_three_rounds(
    shares: list[list[int]], window: int, capacity: int
) -> None:
    setting = Setting(window=window, capacity=capacity, budget=13)
    result = simulate(shares, setting)
    for rank, share in zip(result.ranks, shares, strict=True):
        assert sorted(age for ages in rank.emitted for age in ages) == list(range(len(share)))
        assert len(rank.emitted) == result.steps
        assert max(rank.waits(), default=0) < 2 * window + 3 * capacity


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_waits_for_less_than_a_window_of_steps(name: str) -> None:
    for ranks in (1, 8):
        result = on_ranks(name, 4096 * ranks // 2, ranks, 0, Setting(window=256))
        assert max(max(rank.waits()) for rank in result.ranks) < 256 + 8


@settings(deadline=None)
@given(
    shares=st.lists(lengths_lists, min_size=1, max_size=4),
    policy=st.sampled_from(["sliding", "tumbling"]),
)
def test_sums_agree_with_what_the_ranks_emitted(shares: list[list[int]], policy: str) -> None:
    result = simulate(shares, Setting(policy=policy, window=5, budget=13))
    assert result.real_tokens == sum(map(sum, shares))
    assert result.real_tokens <= result.padded_tokens
    assert result.fewest_steps <= result.busiest_steps <= result.steps
    assert result.idle == sum(not ages for rank in result.ranks for ages in rank.emitted)
    assert result.slowest_cost * len(shares) >= result.padded_tokens
    exchanged = REPORT_BYTES * (result.rounds + 1) + TOTAL_BYTES * result.steps
    assert result.bytes_a_rank == exchanged


def test_a_closure_ends_without_an_idle_step() -> None:
    setting = Setting(window=16, join=False)
    result = simulate(deal(WORKLOADS["mmmix"].draw(1000), 7), setting)
    assert result.idle == 0
    assert result.steps > 0


def test_the_command_writes_a_markdown_table(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    options = [
        "--workloads",
        "llava",
        "--ranks",
        "2",
        "--samples",
        "300",
        "--windows",
        "64",
        "--out",
    ]
    assert main([*options, str(out)]) == 0
    lines = out.read_text().splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert [line.split("|")[5].strip() for line in lines[2:]] == ["tumbling", "sliding"]


def test_the_command_refuses_zero_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--ranks", "0"])
    assert "at least 1" in capsys.readouterr().err


B_8B = 1.75e-5  # of an 8B model: causal attention's share in the cost of a token pair


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("window", "most"), [(64, 1.02), (256, 1.01), (1024, 1.01)])
@pytest.mark.parametrize("budget", [8192, 16384])
def test_packed_rows_are_filled_by_real_tokens(
    name: str, window: int, most: float, budget: int
) -> None:
    setting = Setting(window=window, budget=budget, layout="packed")
    for seed in SEEDS:
        result = on_ranks(name, 4096, 1, seed, setting)
        assert result.steps / result.fewest_steps <= most
        assert window > 256 or abs(result.correlation) <= 0.05


@pytest.mark.parametrize("name", NAMES)
def test_packed_rows_are_at_least_as_full_as_others_that_work_online(name: str) -> None:
    for seed in SEEDS[:2]:
        ours = on_ranks(name, 4096, 1, seed, Setting(window=256, layout="packed")).fill
        fills = {
            policy: on_ranks(name, 4096, 1, seed, Setting(policy=policy, layout="packed")).fill
            for policy in ("greedy", "first-fit", "best-fit-decreasing")
        }
        assert ours >= max(fills["greedy"], fills["first-fit"])
        assert ours >= 0.99 * fills["best-fit-decreasing"]  # which sees the whole epoch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "most"),
    [(name, 8, 1.05) for name in NAMES]
    + [(name, 64, 1.11 if name == "sharegpt4o" else 1.08) for name in NAMES],
)
def test_rows_of_one_cost_keep_the_ranks_together(name: str, ranks: int, most: float) -> None:
    setting = Setting(window=256, layout="packed", slope=B_8B)
    result = on_ranks(name, 1000 * ranks, ranks, 0, setting)
    assert result.time_over_ideal <= most
    padded = on_ranks(name, 1000 * ranks, ranks, 0, Setting(window=256, slope=B_8B))
    assert result.time_over_ideal < padded.time_over_ideal


def test_a_cost_target_evens_out_what_tokens_do_not() -> None:
    by_tokens = on_ranks("sharegpt4o", 8000, 8, 0, Setting(policy="first-fit", layout="packed"))
    results = {
        slope: on_ranks("sharegpt4o", 8000, 8, 0, Setting(window=256, layout="packed", slope=slope))
        for slope in (0.0, B_8B, 1e-3)
    }
    assert results[B_8B].slowest_over_mean < 1.04
    assert results[0.0].slowest_over_mean <= by_tokens.slowest_over_mean + 0.01
    assert results[1e-3].steps > 1.1 * results[0.0].steps  # the longest cost many rows


@settings(deadline=None)
@given(
    shares=st.lists(lengths_lists, min_size=1, max_size=4),
    policy=st.sampled_from(["sliding", "tumbling", "greedy", "first-fit", "best-fit-decreasing"]),
    slope=st.sampled_from([0.0, 0.05]),
)
def test_packed_rows_hold_every_sample_once(
    shares: list[list[int]], policy: str, slope: float
) -> None:
    setting = Setting(policy=policy, layout="packed", slope=slope, window=5, budget=13)
    result = simulate(shares, setting)
    for rank, share in zip(result.ranks, shares, strict=True):
        assert sorted(age for ages in rank.emitted for age in ages) == list(range(len(share)))
        groups = rank.last(result.steps)
        assert all(len(group) == 1 or sum(group) <= 13 for group in groups)
    assert result.real_tokens == result.padded_tokens == sum(map(sum, shares))
    assert result.cost == pytest.approx(result.document_cost, abs=0.5 * result.steps * len(shares))


def test_the_command_writes_rows_by_name(tmp_path: Path) -> None:
    out, table = tmp_path / "rows.json", tmp_path / "table.md"
    options = "--workloads llava --ranks 2 --samples 300 --windows 64 --cost 1.75e-5 --seed 0 1"
    lists = "--layouts padded packed --policies sliding first-fit"
    files = ["--json", str(out), "--out", str(table)]
    assert main([*options.split(), *lists.split(), *files]) == 0
    rows = json.loads(out.read_text())
    wanted = "workload ranks samples window policy layout seed steps steps_over_minimum "
    wanted += "time_over_ideal slowest_over_mean fill idle correlation longest_wait"
    assert all(set(wanted.split()) <= set(row) for row in rows)
    assert [(row["layout"], row["policy"], row["seed"]) for row in rows] == [
        ("padded", "sliding", 0),
        ("padded", "sliding", 1),
        ("packed", "sliding", 0),
        ("packed", "sliding", 1),
        ("packed", "first-fit", 0),
        ("packed", "first-fit", 1),
    ]
    assert len(table.read_text().splitlines()) == 2 + len(rows)


def test_the_command_refuses_what_it_could_only_ignore(capsys: pytest.CaptureFixture[str]) -> None:
    for options, told in [
        (["--policies", "first-fit"], "--layouts packed"),
        (["--cost", "-1"], "cost must be at least 0"),
    ]:
        with pytest.raises(SystemExit):
            main(options)
        assert told in capsys.readouterr().err

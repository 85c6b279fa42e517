"""The plan: simulated epochs hold every sample, and say what a run then does."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.titan.runs import summary, train
from titan_integration.errors import UserError
from titan_integration.plan.command import main
from titan_integration.plan.epoch import cost_of_model, measure
from titan_integration.plan.memory import ModelShape, budget_in, shape_of_config, shape_of_folder
from titan_integration.plan.methods import Steps, fixed, greedy_packed, length_sorted, online
from titan_integration.plan.plan import Question, draw, num_epochs, recommend, simulate

METHODS: dict[str, Callable[..., Steps]] = {
    "fixed": partial(fixed, batch_size=3),
    "sorted": partial(length_sorted, batch_size=3),
    "packed": partial(greedy_packed, budget=64),
    "ours": partial(online, budget=64, window=8),
    "ours, packed": partial(online, budget=64, window=8, layout="packed"),
}


@pytest.mark.parametrize("name", METHODS)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=80), ranks=st.integers(1, 4))
def test_every_sample_is_in_an_epoch_once(name: str, lengths: list[int], ranks: int) -> None:
    steps = list(METHODS[name](np.array(lengths), ranks))
    assert Counter(length for step in steps for group in step for length in group) == Counter(
        lengths
    )
    assert all(len(step) == ranks for step in steps)
    if "packed" in name or name == "ours":
        size = sum if "packed" in name else (lambda group: len(group) * max(group))
        assert all(size(g) <= 64 for step in steps for g in step if len(g) > 1)


def test_work_is_that_of_the_slowest_rank() -> None:
    cost = cost_of_model(100)
    epoch = measure("x", [[[30, 60], [60]], [[60], []]], budget=120, cost=cost)
    row = 60 + 60 * 60 / 1200
    assert epoch.work == pytest.approx(2 * row + row)
    assert epoch.padding == pytest.approx(30 / 240)
    ideal = (3 * row + 30 + 900 / 1200) / 2
    assert epoch.efficiency == pytest.approx(ideal / epoch.work)
    packed = measure("x", [[[30, 60], [60]]], budget=100, cost=cost, packed=True, least=100)
    assert packed.batch_tokens == 200
    assert packed.padding == pytest.approx(50 / 200)


def test_few_samples_are_taken_as_they_are_and_many_keep_their_tail() -> None:
    assert Counter(draw({3: 2, 9: 1}, 10).tolist()) == {3: 2, 9: 1}
    drawn = draw({10: 990_000, 5000: 10_000}, 20_000)
    assert Counter(drawn.tolist()) == {10: 19_800, 5000: 200}


def test_steps_are_those_of_all_samples_and_gpus() -> None:
    histogram = {16: 400_000}
    question = Question(gpus=64, budgets=(64,), windows=(16,))
    epochs = list(simulate(histogram, question))
    assert len(epochs) == num_epochs(question)
    for epoch in epochs:
        assert epoch.samples == 400_000
        assert epoch.steps == pytest.approx(400_000 / 4 / 64, rel=0.02), epoch.method


def test_the_budget_is_what_fits_unless_few_steps_were_left() -> None:
    histogram = {1000: 1_000_000}
    assert recommend(16_384, histogram, 8) == (16_384, "what the memory takes")
    budget, why = recommend(16_384, {1000: 8_000}, 8)
    assert budget == 9_984
    assert why.startswith("for 100 steps per epoch")
    assert recommend(512, histogram, 8)[0] == 512
    assert recommend(None, histogram, 8)[0] == 4096


def test_the_estimate_knows_models_and_their_memory(tmp_path: Path) -> None:
    llama = shape_of_config("configs.llama3", "llama3_8b_sft")
    assert llama.parameters == pytest.approx(8.03e9, rel=0.01)
    values = {
        "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128_256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = shape_of_folder(tmp_path)
    assert found is not None
    assert found.parameters == pytest.approx(llama.parameters, rel=0.01)
    assert 4_000 < budget_in(80, llama, 8) < budget_in(140, llama, 8)
    with pytest.raises(UserError, match=r"needs about .* GB per GPU on 1 GPUs"):
        budget_in(80, llama, 1)
    tiny = ModelShape(name="tiny", parameters=10_000, layers=1, dim=32, vocab=512)
    assert budget_in(8, tiny, 1) > 1_000_000


def test_the_command_reports_draws_and_recommends(
    tmp_path: Path, rows: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "q", "response": ""}\n{"prompt": "q", "response": "a", "z": 1}\n')
    paths = [str(rows), str(bad)]
    files = ["--json", str(tmp_path / "plan.json"), "--png", str(tmp_path / "plan.png")]
    options = ["--cache_dir", str(tmp_path / "cache"), "--gpus", "2", "--windows", "16", "64"]
    assert main([*paths, "--hf_assets_path", str(tokenizer), *files, *options]) == 0
    said = capsys.readouterr().out
    report = json.loads((tmp_path / "plan.json").read_text())
    assert report["rows"] == 242
    assert report["samples"] == report["answers_trained"] == 241
    assert sum(report["dropped"].values()) == 1
    assert report["files"] == paths
    assert any("z" in key for key in report["unread_keys"])
    assert report["lengths"]["longest"] >= report["lengths"]["median"] > 0
    assert report["target_tokens"] > 0
    assert f"--data.path {','.join(paths)}" in said
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    methods = {epoch["method"] for epoch in report["plan"]}
    assert {"ours, padded", "ours, packed", "packed greedily"} <= methods


def test_a_run_takes_the_steps_that_the_plan_says(
    tmp_path: Path, rows: Path, tokenizer: Path, data_args: list[str]
) -> None:
    out = tmp_path / "plan.json"
    options = ["--gpus", "1", "--windows", "64", "--budgets", "1024", "--json", str(out)]
    options += ["--png", str(tmp_path / "p.png"), "--hf_assets_path", str(tokenizer)]
    assert main([str(rows), *options]) == 0
    plan = json.loads(out.read_text())["plan"]
    [planned] = [e for e in plan if (e["method"], e["budget"]) == ("ours, padded", 1024)]
    train(tmp_path / "run", *data_args)
    run = summary(tmp_path / "run")
    assert run["steps"] == pytest.approx(planned["steps"], rel=0.05)
    assert run["real_tokens"] == planned["real_tokens"]


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["none.jsonl"], "error: data.path must name files, got 'none.jsonl'"),
        ([], "error: give a path, or --mix"),
        (["{rows}", "--gpus", "0"], "error: --gpus must be over 0, got 0"),
        (["{rows}", "--memory_gb", "80"], "error: --memory_gb needs a model"),
        (["{rows}", "--module", "configs.llama3"], "name a configuration together"),
        (["{rows}", "--module", "configs.llama3", "--config", "nope"], "error: no model in"),
        (["{rows}", "--hf_assets_path", "/nowhere"], "error: no tokenizer in"),
        (["{rows}", "--json", "/nowhere/x.json"], "error: cannot write --json"),
        (["{empty}"], "error: no row can be trained on"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    rows: Path,
    tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    line: str,
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    filled = [arg.format(rows=rows, empty=empty) for arg in args]
    options = ["--hf_assets_path", str(tokenizer), "--png", str(tmp_path / "p.png")]
    assert main([*options, *filled]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert line in said[-1]
    assert not any("Traceback" in text for text in said)

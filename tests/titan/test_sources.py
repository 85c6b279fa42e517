"""Mixtures and held-out rows in training: exact over kills and ranks, told apart in the metrics."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss

from tests.titan.runs import Run, delivered, scalars, summary, train
from titan_integration.data.inputs.origin import count_by_source, source_map
from titan_integration.source_loss import SourceLoss


@pytest.fixture
def mix(tmp_path: Path, rows: Path) -> str:
    """All 240 rows twice, and half of 40 short ones."""
    short = tmp_path / "short.jsonl"
    pair = {"prompt": "What is it?", "response": "It is a row."}
    short.write_text(
        "".join(json.dumps({**pair, "response": f"Row {i}."}) + "\n" for i in range(40))
    )
    return f"{rows}:2,{short}:0.5"


@pytest.mark.timeout(900)  # three runs
def test_a_mixture_is_trained_on_exactly_over_a_kill_and_a_change_of_ranks(
    tmp_path: Path, mix: str, tokenizer: Path
) -> None:
    args = ["--data.mix", mix, "--hf_assets_path", str(tokenizer)]
    args += ["--metrics.enable_tensorboard"]
    killed = Run(tmp_path / "run", *args)
    killed.wait_for_step(8)
    killed.kill()
    train(tmp_path / "run", *args, ranks=2)
    assert Counter(delivered(tmp_path / "run")) == {(0, index): 1 for index in range(500)}
    found = summary(tmp_path / "run")
    assert found["coverage"] == "exact"
    assert {name: s["samples"] for name, s in found["sources"].items()} == {
        "rows.jsonl": 480,
        "short.jsonl": 20,
    }
    values = scalars(tmp_path / "run")
    last = max(values["odb/source/rows.jsonl/samples"])
    assert values["odb/source/rows.jsonl/samples"][last] == 480
    assert_losses_add_up(values)


def assert_losses_add_up(values: dict[str, dict[int, float]]) -> None:
    """The loss of a step is the mean of its sources' losses, weighted by their tokens."""
    names = ("rows.jsonl", "short.jsonl")
    checked = 0
    for step, loss in values["loss_metrics/global_avg_loss"].items():
        tokens = [values[f"odb/source/{name}/loss_tokens"] for name in names]
        losses = [values.get(f"odb/source/{name}/loss", {}).get(step) for name in names]
        if step - 1 not in tokens[0]:
            continue
        news = [series[step] - series[step - 1] for series in tokens]
        assert [loss is not None for loss in losses] == [new > 0 for new in news]
        total = sum(new * (own or 0.0) for new, own in zip(news, losses, strict=True))
        assert total / sum(news) == pytest.approx(loss, rel=1e-4)
        checked += 1
    assert checked > 5


@pytest.mark.timeout(600)
def test_held_out_rows_are_validated_on_and_never_trained_on(
    tmp_path: Path, data_args: list[str]
) -> None:
    args = ["--data.validation_fraction", "0.1", "--validator.enable", "--validator.freq", "100"]
    result = train(tmp_path / "run", *data_args, *args)
    found = summary(tmp_path / "run")
    assert (found["samples_total"], found["coverage"]) == (216, "exact")
    lines = (tmp_path / "run" / "audit.validation.rank0.jsonl").read_text().splitlines()
    seen = [index for line in map(json.loads, lines) for index in line.get("indices", [])]
    assert sorted(seen) == list(range(24))
    assert "validate" in result.out


def test_the_parts_of_a_packed_row_know_their_sources() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1]])
    found = source_map([1, 0], positions, layout="packed")
    assert found.tolist() == [[1, 1, 1, 0, 0, -1, -1]]
    padded = source_map([1, 0], torch.arange(3).expand(2, 3), layout="padded")
    assert padded.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert source_map([], positions, layout="packed").unique().tolist() == [-1]
    assert count_by_source(found, torch.where(positions > 0, 5, -100), 3) == [1, 2, 0]


@pytest.mark.parametrize("chunks", [1, 3])
def test_losses_by_source_are_those_of_their_tokens(chunks: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2, 6, 8, requires_grad=True)
    labels = torch.randint(0, 16, (2, 6))
    labels[0, :2] = -100
    sources = torch.tensor([[0] * 6, [1, 1, 1, 0, 0, -1]])
    labels[1, 5] = -100
    head = torch.nn.Linear(8, 16, bias=False)
    if chunks > 1:
        loss = ChunkedLossWrapper.Config(
            num_chunks=chunks, loss_fn=CrossEntropyLoss.Config()
        ).build(compile_config=None)
        loss.set_lm_head(head)
        pred = hidden
    else:
        loss, pred = CrossEntropyLoss.Config().build(compile_config=None), head(hidden)
    listener = SourceLoss(["a", "b", "never"])
    listener.attach(loss)
    expected = loss(pred, labels)[0]
    listener.begin_step([sources])
    listener.begin_microbatch()
    assert torch.equal(loss(pred, labels)[0], expected)
    listener.end_step()
    loss(pred, labels)
    tokens = torch.nn.functional.cross_entropy(
        head(hidden).detach().flatten(0, 1), labels.flatten(), reduction="none"
    ).reshape(2, 6)
    found = listener.take(None)
    assert found == {
        name: pytest.approx(float(tokens[(sources == i) & (labels >= 0)].mean()), rel=1e-5)
        for i, name in enumerate("ab")
    }
    assert listener.take(None) == {}

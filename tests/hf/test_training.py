"""What a user of the Trainer sees: ends, learning rate, progress, metrics, checkpoints."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import DataCollatorWithFlattening, Trainer

from hf_integration import OdbTrainer
from hf_integration.errors import Refusal
from hf_integration.upstream import TrainerCallback
from tests.hf import tiny
from tests.hf.gradients import odb
from tests.hf.stacks import Audited, audit

ROWS = 60


class AuditedTrainer(Audited, Trainer):
    pass


def build(folder: Path, *, settings: Any = None, rows: int = ROWS, **changes: Any) -> Any:
    trainer = AuditedTrainer(
        model=tiny.llama(num_hidden_layers=1),
        args=tiny.arguments(folder, **changes),
        train_dataset=tiny.Rows(rows),
        eval_dataset=tiny.Rows(4, seed=1),
        data_collator=tiny.pad,
        odb=settings or odb(),
    )
    trainer.audit = folder / "audit"
    trainer.audit.mkdir(parents=True, exist_ok=True)
    return trainer


def summary(folder: Path) -> Any:
    return json.loads((folder / "odb_summary.json").read_text())


def steps_of(trainer: Any) -> list[dict[str, float]]:
    return [line for line in trainer.state.log_history if "loss" in line]


@pytest.mark.parametrize("epochs", [0.4, 1.5, 2])
def test_a_run_ends_at_the_first_step_that_reaches_its_epochs(
    epochs: float, tmp_path: Path
) -> None:
    trainer = build(tmp_path, num_train_epochs=epochs)
    trainer.train()
    emitted = [line["odb/samples_emitted"] for line in steps_of(trainer)]
    assert emitted[-2] < ROWS * epochs <= emitted[-1]
    assert trainer.state.max_steps == trainer.state.global_step == len(emitted)
    assert max(Counter(audit(tmp_path, "audit")).values()) == 1
    if epochs == 2:
        assert summary(tmp_path)["coverage"] == "exact"


def test_a_quota_or_a_number_of_steps_ends_a_run(tmp_path: Path) -> None:
    quota = build(tmp_path / "quota", settings=odb(sample_quota=100))
    quota.train()
    emitted = [line["odb/samples_emitted"] for line in steps_of(quota)]
    assert emitted[-2] < 100 <= emitted[-1]
    steps = build(tmp_path / "steps", max_steps=3, warmup_steps=2)
    steps.train()
    assert steps.state.global_step == 3
    assert summary(tmp_path / "steps")["coverage"].startswith("partial")


@pytest.mark.parametrize("warmup", [{"warmup_steps": 0.25}, {"settings": odb(warmup_samples=15)}])
def test_the_learning_rate_follows_the_samples(warmup: dict[str, Any], tmp_path: Path) -> None:
    trainer = build(tmp_path, gradient_accumulation_steps=2, **warmup)
    trainer.train()
    before = 0.0
    for line in steps_of(trainer):
        rise, fall = before / 15, (ROWS - before) / (ROWS - 15)
        assert line["learning_rate"] == pytest.approx(1e-3 * min(rise, fall), rel=1e-6)
        before = line["odb/samples_emitted"]


def test_the_bar_counts_samples_and_reaches_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path, disable_tqdm=False).train()
    bars = re.findall(r"(\d+)%\|[^|]*\| (\d+)/(\d+) ", capfd.readouterr().err)
    assert bars[-1] == ("100", str(ROWS), str(ROWS))


def test_metrics_go_through_the_trainers_log(tmp_path: Path) -> None:
    trainer = build(tmp_path, eval_strategy="epoch", logging_steps=2)
    output = trainer.train()
    for line in steps_of(trainer):
        assert 0 <= line["odb/padding_ratio"] < 1
        assert line["odb/real_tokens_per_s"] > 0
        assert line["epoch"] == pytest.approx(line["odb/samples_emitted"] / ROWS)
    assert any("eval_loss" in line for line in trainer.state.log_history)
    wall_s = output.metrics["train_runtime"]
    assert output.metrics["train_samples_per_second"] == pytest.approx(ROWS / wall_s, rel=0.01)
    result = summary(tmp_path)
    tokens = sum(len(row["input_ids"]) for row in tiny.Rows(ROWS).rows)
    assert (result["real_tokens"], result["samples_emitted"]) == (tokens, ROWS)
    assert result["padding_ratio"] == pytest.approx(1 - tokens / result["padded_tokens"])


def test_an_incomplete_newest_checkpoint_is_skipped(tmp_path: Path) -> None:
    saves: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    whole = build(tmp_path / "whole", **saves)
    whole.train()
    folder = tmp_path / "again"
    first = build(folder, **saves)
    first.add_callback(RaisesAt(first, 3))
    with pytest.raises(Interrupted):
        first.train(resume_from_checkpoint=True)
    (folder / "checkpoint-9").mkdir()
    again = build(folder, **saves)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-9"))
    assert summary(folder)["resumed_from"] == 2
    assert tiny.fingerprint(again.model) == tiny.fingerprint(whole.model)


class Interrupted(Exception):
    pass


class RaisesAt(TrainerCallback):
    """Ends a run within its step, and saves there first if told to."""

    def __init__(self, trainer: Any, step: int, *, saves: bool = False) -> None:
        self.trainer, self.step, self.saves = trainer, step, saves

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step:
            if self.saves:
                self.trainer._save_checkpoint(self.trainer.model, None)
            raise Interrupted


def test_a_checkpoint_taken_within_a_step_has_the_samples_of_that_step_before_it(
    tmp_path: Path,
) -> None:
    first = build(tmp_path)
    first.add_callback(RaisesAt(first, 3, saves=True))
    with pytest.raises(Interrupted):
        first.train()
    again = build(tmp_path)
    again.train(resume_from_checkpoint=True)
    assert summary(tmp_path)["resumed_from"] == 2
    seen = Counter(audit(tmp_path, "audit"))
    twice = [sample for sample, count in seen.items() if count == 2]
    assert set(seen.values()) == {1, 2}  # what the interrupted step had drawn, and no more
    assert len(seen) == ROWS
    assert len(twice) < ROWS / 2
    assert summary(tmp_path)["samples_emitted"] == ROWS


def test_a_finished_run_started_again_trains_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saves: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    build(tmp_path, **saves).train(resume_from_checkpoint=True)
    again = build(tmp_path, **saves)
    again.train(resume_from_checkpoint=True)
    assert "Nothing left to train" in caplog.text
    assert summary(tmp_path)["samples_emitted"] == ROWS
    longer = build(tmp_path, num_train_epochs=2, **saves)
    longer.train(resume_from_checkpoint=True)
    assert summary(tmp_path)["samples_emitted"] == 2 * ROWS


def test_without_settings_everything_is_the_trainers_own(tmp_path: Path) -> None:
    trainer = OdbTrainer(
        model=tiny.llama(num_hidden_layers=1),
        args=tiny.arguments(tmp_path, per_device_train_batch_size=10, warmup_steps=1),
        train_dataset=tiny.Rows(ROWS),
        data_collator=tiny.pad,
    )
    trainer.train()
    assert trainer.state.global_step == ROWS / 10
    assert not (tmp_path / "odb_summary.json").exists()


def test_samples_are_laid_end_to_end_where_the_collator_does(tmp_path: Path) -> None:
    """A flattening collator fills the budget by real tokens: fewer steps than padded ones."""
    steps = {}
    for layout in ("auto", "padded"):
        trainer = build(tmp_path / layout, settings=odb(layout=layout))
        trainer.data_collator = DataCollatorWithFlattening()
        trainer.train()
        steps[layout] = trainer.state.global_step
        found = summary(tmp_path / layout)
        assert (found["samples_emitted"], found["padding_ratio"]) == (ROWS, 0.0)
    assert steps["auto"] < steps["padded"]


def test_packed_samples_need_a_collator_that_packs(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match='layout="packed" needs a collator that lays samples'):
        build(tmp_path, settings=odb(layout="packed")).train()

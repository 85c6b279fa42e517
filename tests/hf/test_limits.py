"""What cannot run is refused at start, in one line: rule, value and remedy."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset
from transformers import HfArgumentParser, TrainingArguments

from hf_integration import OdbArguments, OdbTrainer, Refusal
from hf_integration.training import limits
from tests.hf import tiny
from tests.hf.gradients import odb


def build(folder: Path, *, dataset: Any = None, settings: Any = None, **changes: Any) -> OdbTrainer:
    return OdbTrainer(
        model=tiny.llama(num_hidden_layers=1),
        args=tiny.arguments(folder, **changes),
        train_dataset=tiny.Rows(12) if dataset is None else dataset,
        eval_dataset=tiny.Rows(4),
        data_collator=tiny.pad,
        odb=settings or odb(),
    )


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size must be False"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last must be False"),
        ({"save_steps": 0.2}, "save_steps must be a number of steps"),
        ({"eval_steps": 0.5}, "eval_steps must be a number of steps"),
        ({"logging_steps": 0.1}, "logging_steps must be a number of steps"),
        ({"warmup_steps": 10}, "warmup_steps must be a ratio below 1"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy must be"),
        ({"train_sampling_strategy": "batch_rebalance"}, "train_sampling_strategy must be"),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
            "lr_scheduler_type must be a function",
        ),
        ({"deepspeed": {"scheduler": {"type": "WarmupLR"}}}, "must not have a scheduler"),
    ],
)
def test_a_setting_that_cannot_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changes.pop("deepspeed", None)
    if config is not None:  # what accelerate would hold of it
        monkeypatch.setattr(limits, "deepspeed_config", lambda trainer: config)
    with pytest.raises(Refusal, match=rule) as refused:
        build(tmp_path, **changes).train()
    assert "\n" not in str(refused.value)
    assert "got" in str(refused.value) or config is not None


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(tiny.Rows(3).rows)


def test_a_dataset_without_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="must have __len__ and __getitem__"):
        build(tmp_path, dataset=Endless(), max_steps=2).train()
    with pytest.raises(Refusal, match="must have rows"):
        build(tmp_path, dataset=tiny.Rows(0)).train()


def test_data_parallel_in_one_process_is_refused(tmp_path: Path) -> None:
    trainer = build(tmp_path)
    trainer.args._n_gpu = 2
    with pytest.raises(Refusal, match="one process per GPU"):
        limits.check_arguments(trainer, odb())


@pytest.mark.parametrize("kind", ["tp", "cp", "sp", "ep"])
def test_ranks_that_share_samples_are_refused(tmp_path: Path, kind: str) -> None:
    trainer = build(tmp_path)

    class Config:
        pass

    setattr(Config, f"{kind}_size", 2)
    trainer.accelerator.state.parallelism_config = Config()  # type: ignore[attr-defined]
    try:
        if getattr(trainer.accelerator, "parallelism_config", None) is None:
            pytest.skip("accelerate keeps its parallelism elsewhere")
        with pytest.raises(Refusal, match=f"got {kind}_size=2"):
            limits.check_arguments(trainer, odb())
    finally:
        trainer.accelerator.state.parallelism_config = None  # type: ignore[attr-defined]


def test_packing_is_refused(tmp_path: Path) -> None:
    trainer = build(tmp_path)
    trainer.args.packing = True
    with pytest.raises(Refusal, match="packing must be False"):
        limits.check_arguments(trainer, odb())


def test_a_warmup_in_samples_needs_a_run_by_samples(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="warmup_samples needs a run that ends by samples"):
        build(tmp_path, max_steps=3, settings=odb(warmup_samples=4))


@pytest.mark.parametrize(
    ("name", "value"),
    [("token_budget", 0), ("window", -1), ("policy", "greedy"), ("sample_quota", 0)],
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        OdbArguments(**{name: value})


def test_the_arguments_are_flags_beside_the_trainers_own() -> None:
    parser = HfArgumentParser((TrainingArguments, OdbArguments))
    line = ["--output_dir", "out", "--use_cpu", "--token_budget", "4096", "--window", "256"]
    _, settings = parser.parse_args_into_dataclasses([*line, "--policy", "tumbling"])
    assert (settings.token_budget, settings.window, settings.policy) == (4096, 256, "tumbling")


def test_a_checkpoint_without_the_datas_state_is_refused(tmp_path: Path) -> None:
    trainer = build(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    (tmp_path / "checkpoint-2" / "odb_state.safetensors").unlink()
    with pytest.raises(Refusal, match="saved without online dynamic batching"):
        build(tmp_path, max_steps=3).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    build(tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    other = build(tmp_path, dataset=tiny.Rows(13), max_steps=2)
    with pytest.raises(Refusal, match="does not fit"):
        other.train(resume_from_checkpoint=True)

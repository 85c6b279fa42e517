"""Every step's gradient is that of the mean over all its loss tokens, whatever the setting."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer

from tests.hf import tiny
from tests.hf.gradients import Checked, Report, all_labels, odb
from tests.hf.worlds import world

WORST = 1e-6  # relative, in float32

pytestmark = pytest.mark.timeout(600)


class CheckedTrainer(Checked, Trainer):
    pass


class MeanLlama(tiny.LlamaForCausalLM):
    """A model that gives the mean over its own tokens, and takes no number to divide by."""

    accepts_loss_kwargs = False


def mean_llama() -> Any:
    model = tiny.llama()
    model.__class__ = MeanLlama
    return model


def lora() -> Any:
    model = get_peft_model(
        tiny.llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    torch.manual_seed(2)
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # zeros at first, and so would be half of the gradients
            torch.nn.init.normal_(weight, std=0.1)
    return model


ALONE = {"odb": odb(token_budget=8)}  # every row a batch of its own, so that ranks run out of them

# Name: model, collator, further keywords of the trainer, training arguments, rows.
CASES: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], int]] = {
    **{
        f"accumulation {n}": (tiny.llama, tiny.pad, {}, {"gradient_accumulation_steps": n}, 60)
        for n in (1, 2, 3, 4)
    },
    "few rows": (tiny.llama, tiny.pad, ALONE, {"gradient_accumulation_steps": 2}, 7),
    "mean loss": (mean_llama, tiny.pad, {}, {"gradient_accumulation_steps": 3}, 47),
    "mean loss, few rows": (mean_llama, tiny.pad, ALONE, {}, 7),
    "labels by the collator": (
        tiny.llama,
        tiny.label_all,
        {**ALONE, "labels": all_labels},
        {"gradient_accumulation_steps": 3},
        7,
    ),
    "label smoothing": (
        tiny.llama,
        tiny.pad,
        {"smoothing": 0.1},
        {"gradient_accumulation_steps": 3, "label_smoothing_factor": 0.1},
        31,
    ),
    "label smoothing, few rows": (
        tiny.llama,
        tiny.pad,
        {**ALONE, "smoothing": 0.1},
        {"label_smoothing_factor": 0.1},
        7,
    ),
    "padding-free": (tiny.llama, tiny.flatten, {}, {"gradient_accumulation_steps": 2}, 31),
    "gradient checkpointing": (
        tiny.llama,
        tiny.pad,
        {},
        {"gradient_accumulation_steps": 2, "gradient_checkpointing": True},
        31,
    ),
    "LoRA": (lora, tiny.pad, {}, {"gradient_accumulation_steps": 3}, 31),
}


def train_cases(rank: int, size: int, folder: Path, names: list[str]) -> dict[str, Report]:
    reports = {}
    for name in names:
        model, collator, keywords, changes, rows = CASES[name]
        trainer = CheckedTrainer(
            model=model(),
            args=tiny.arguments(folder, max_grad_norm=0.0, **changes),
            train_dataset=tiny.Rows(rows),
            data_collator=collator,
            **{"odb": odb(), **keywords},
        )
        trainer.train()
        reports[name] = trainer.report
    return reports


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_are_those_of_one_process_in_float64(size: int, tmp_path: Path) -> None:
    ranks = world(train_cases, size, tmp_path, list(CASES))
    reports = ranks[0]
    for name, report in reports.items():
        assert report.samples == CASES[name][-1], name
        assert max(report.errors) <= WORST, (name, max(report.errors))
    if size > 1:
        for name in CASES:
            idle = sum(rank[name].idle for rank in ranks)
            assert idle > 0 or CASES[name][-1] != 7, f"{name}: no rank was ever IDLE"

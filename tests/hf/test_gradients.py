"""Every step's gradient is that of the mean over all its loss tokens, whatever the setting."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorWithFlattening,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
)
from trl import SFTConfig, SFTTrainer

from odb_nodes import PackCollate
from odb_nodes.protocol.transport import gather
from tests.hf import tiny
from tests.hf.gradients import Checked, Report, all_labels, odb
from tests.hf.stacks import prompts, tokenizer
from tests.hf.worlds import world

WORST = 1e-6  # relative, in float32

pytestmark = pytest.mark.timeout(600)


class CheckedTrainer(Checked, Trainer):
    pass


class MeanLlama(LlamaForCausalLM):
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
    "packed": (
        tiny.llama,
        DataCollatorWithFlattening(),
        {},
        {"gradient_accumulation_steps": 2},
        31,
    ),
    "packed by our own collator, few rows": (
        tiny.llama,
        PackCollate(form="position_ids"),
        ALONE,
        {"gradient_accumulation_steps": 2},
        7,
    ),
    "gradient checkpointing": (
        tiny.llama,
        tiny.pad,
        {},
        {"gradient_accumulation_steps": 2, "gradient_checkpointing": True},
        31,
    ),
    "LoRA": (lora, tiny.pad, {}, {"gradient_accumulation_steps": 3}, 31),
}


class CheckedSFT(Checked, SFTTrainer):
    pass


class CheckedMixture(CheckedTrainer):
    """The reference of a mixture of experts: each batch's own mean, by its share of the tokens."""

    def reference(self, model: Any, rows: list[Any]) -> dict[str, torch.Tensor]:
        twin = copy.deepcopy(model).double().train()
        twin.zero_grad(set_to_none=True)
        shares = [int((batch["labels"][:, 1:] != -100).sum()) for batch in self.step_batches]
        for batch, share in zip(self.step_batches, shares, strict=True):
            if share:
                (twin(**batch).loss * share / sum(shares)).backward()
        return {n: p.grad for n, p in twin.named_parameters() if p.grad is not None}

    def step_indices(self) -> list[int]:
        own = [batch for step in self.drawn for batch in step.batches]
        ranks = gather(own) if dist.is_initialized() else [own]
        self.step_batches = [batch for rank in ranks for batch in rank]
        return super().step_indices()


def mixture() -> Any:
    """Two experts and a router loss that is not small."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 2}
    router = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    config = MixtralConfig(vocab_size=tiny.VOCAB, **sizes, **heads, **router)
    config._experts_implementation = "eager"  # grouped kernels know no float64
    return MixtralForCausalLM(config)


def train_mixture(rank: int, size: int, folder: Path, accumulation: int) -> Report:
    trainer = CheckedMixture(
        model=mixture(),
        args=tiny.arguments(folder, max_grad_norm=0.0, gradient_accumulation_steps=accumulation),
        train_dataset=tiny.Rows(31),
        data_collator=tiny.pad,
        odb=odb(),
    )
    trainer.train()
    return trainer.report


def train_sft(rank: int, size: int, folder: Path) -> list[Report]:
    reports = []
    for padding_free in (False, True):
        quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False}
        trainer = CheckedSFT(
            model=tiny.llama(),
            args=SFTConfig(
                str(folder),
                gradient_accumulation_steps=2,
                max_grad_norm=0.0,
                num_train_epochs=1,
                save_strategy="no",
                padding_free=padding_free,
                max_length=None,
                **quiet,
            ),
            train_dataset=prompts(),
            processing_class=tokenizer(),
            odb=odb(),
        )
        trainer.train()
        reports.append(trainer.report)
    return reports


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


def test_the_router_loss_of_a_mixture_counts_once_per_step(tmp_path: Path) -> None:
    report = world(train_mixture, 2, tmp_path, 2)[0]
    assert report.samples == 31
    assert max(report.errors) <= WORST


def test_trl_trains_exactly_padded_and_padding_free(tmp_path: Path) -> None:
    for report in world(train_sft, 2, tmp_path)[0]:
        assert report.samples > 0
        assert max(report.errors) <= WORST

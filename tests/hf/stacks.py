"""The same run on every stack: a Trainer with an audit log that can be told to die."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Trainer
from trl import SFTConfig, SFTTrainer

from hf_integration import OdbTrainerMixin
from hf_integration.upstream import TrainerCallback, jit_callback
from tests.hf import tiny
from tests.hf.gradients import odb

NUM_ROWS = 90
ZERO2 = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
}


class Audited(OdbTrainerMixin):  # type: ignore[misc]
    """Writes the samples of every step to a file of the rank, before they are trained."""

    audit: Path

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        return super().get_batch_samples(self._noting(epoch_iterator), num_batches, device)

    def _noting(self, steps: Any) -> Any:
        with (self.audit / f"rank{self.args.process_index}.jsonl").open("a", buffering=1) as log:
            for step in steps:
                for info in step.infos:
                    views = [view.position for view in info.views]
                    log.write(json.dumps([self.state.global_step + 1, info.epoch, views]) + "\n")
                yield step


class Dies(TrainerCallback):
    """SIGKILL on every rank at the end of a step: nothing is saved at death."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class AuditedTrainer(Audited, Trainer):
    pass


class AuditedSFT(Audited, SFTTrainer):
    pass


def tokenizer() -> PreTrainedTokenizerFast:
    """A word for every token of the model."""
    vocab = {f"w{index}": index for index in range(tiny.VOCAB)}
    words = Tokenizer(models.WordLevel(vocab, unk_token="w1"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="w0", eos_token="w2", unk_token="w1"
    )


def prompts() -> Dataset:
    """The rows as text: prompt and completion."""
    found = []
    for row in tiny.Rows(NUM_ROWS).rows:
        words = [f"w{token}" for token in row["input_ids"]]
        cut = len(words) // 2
        found.append({"prompt": " ".join(words[:cut]), "completion": " " + " ".join(words[cut:])})
    return Dataset.from_list(found)


def lora() -> LoraConfig:
    return LoraConfig(
        r=4, lora_dropout=0.2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )


def build(stack: str, folder: Path, **changes: Any) -> Any:
    """A trainer with dropout that saves every second step."""
    options = {
        "num_train_epochs": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "gradient_accumulation_steps": 2,
        "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine",
        **changes,
    }
    if stack == "ZeRO-2":
        options["deepspeed"] = ZERO2
    model = tiny.llama(attention_dropout=0.1)
    if stack == "SFTTrainer + LoRA":
        quiet = {"report_to": [], "disable_tqdm": True, "logging_steps": 1, "use_cpu": True}
        return AuditedSFT(
            model=model,
            args=SFTConfig(str(folder), learning_rate=1e-3, bf16=False, **{**quiet, **options}),
            train_dataset=prompts(),
            processing_class=tokenizer(),
            peft_config=lora(),
            odb=odb(),
        )
    if stack == "Trainer + LoRA":
        from peft import get_peft_model

        model = get_peft_model(model, lora())
    rows = tiny.Rows(NUM_ROWS)
    return AuditedTrainer(
        model=model,
        args=tiny.arguments(folder, **options),
        train_dataset=rows,
        eval_dataset=tiny.Rows(8, seed=1) if stack == "Trainer" else None,
        data_collator=tiny.pad,
        odb=odb(),
    )


def run(
    rank: int, size: int, stack: str, folder: Path, part: str, dies: int | None, changes: Any
) -> tuple[str, int | None, int]:
    """One start of the command; returns the weights' hash, where it resumed, and the last step."""
    torch.use_deterministic_algorithms(True)
    if stack == "Trainer":
        changes = {"eval_strategy": "steps", "eval_steps": 3, **changes}
    trainer = build(stack, folder / "out", **changes)
    trainer.audit = folder / part
    trainer.audit.mkdir(parents=True, exist_ok=True)
    if dies is not None:
        trainer.add_callback(Dies(dies))
    trainer.train(resume_from_checkpoint=True)
    summary = json.loads((folder / "out" / "odb_summary.json").read_text())
    model = trainer.accelerator.unwrap_model(trainer.model)
    return tiny.fingerprint(model), summary["resumed_from"], trainer.state.global_step


class Signals(TrainerCallback):
    """SIGTERM to this rank at a step; waits until the Trainer's handler has noticed."""

    def __init__(self, signals: Any, step: int) -> None:
        self.signals, self.step = signals, step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
            while not self.signals.jit_manager.is_checkpoint_requested:
                time.sleep(0.01)


def stopped(rank: int, size: int, folder: Path, part: str) -> int:
    """A run of which rank 1 gets a signal within step 3; returns the step at which it stopped."""
    trainer = build("Trainer", folder / "out", save_steps=100, enable_jit_checkpoint=True)
    trainer.audit = folder / part
    trainer.audit.mkdir(parents=True, exist_ok=True)
    signals = jit_callback(trainer)
    signals.jit_manager.kill_wait = 0
    if rank == 1:
        trainer.add_callback(Signals(signals, 3))
    trainer.train()
    return int(trainer.state.global_step)


def audit(folder: Path, part: str, last_step: int | None = None) -> list[tuple[int, int]]:
    """(epoch, position) of the samples of a part's steps, up to one."""
    found = []
    for path in (folder / part).glob("rank*.jsonl"):
        for line in path.read_text().splitlines():
            step, epoch, positions = json.loads(line)
            if last_step is None or step <= last_step:
                found += [(epoch, position) for position in positions]
    return found

"""What this package relies on in torchtitan; a newer torchtitan that changes it fails here."""

import inspect
from typing import Any

import pytest
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.components.validate import Validator
from torchtitan.models.common import attention
from torchtitan.trainer import Trainer

PARAMETERS: dict[Any, list[str]] = {
    Trainer.__init__: ["self", "config"],
    Trainer.train: ["self"],
    Trainer.train_step: ["self", "data_iterator"],
    Trainer.batch_generator: ["self", "data_iterable"],
    Trainer.should_continue_training: ["self"],
    Trainer.forward_backward_step: ["self", "input_dict", "labels", "global_valid_tokens"],
    Trainer.post_dataloading_process: ["self", "input_dict", "labels"],
    Trainer.state_dict: ["self"],
    Trainer.load_state_dict: ["self", "state_dict"],
    MetricsProcessor.log: [
        "self",
        "step",
        "global_avg_loss",
        "global_max_loss",
        "grad_norm",
        "extra_metrics",
    ],
    LRSchedulersContainer.Config.build: ["self", "optimizers", "training_steps"],
    LRSchedulersContainer.__init__: ["self", "optimizers", "lr_lambda"],
    LRSchedulersContainer.load_state_dict: ["self", "state_dict"],
    HuggingFaceTokenizer.apply_chat_template: ["self", "messages", "kwargs"],
    BaseDataLoader.__iter__: ["self"],
    Validator.validate: ["self", "model_parts", "step"],
    Validator.post_dataloading_process: ["self", "input_dict", "labels", "model_parts"],
}


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda f: f.__qualname__)
def test_methods_overridden_or_called_take_what_they_took(function: Any) -> None:
    got = list(inspect.signature(function).parameters)
    assert got == PARAMETERS[function], (
        f"torchtitan changed {function.__qualname__}: it takes {got}; "
        "see who overrides or calls it in titan_integration before allowing this version"
    )


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (Trainer.train, "last_step=(self.step == config.training.steps)"),
        (Trainer.train, "while self.should_continue_training():"),
        (Trainer.train, "data_iterator = self.batch_generator(self.dataloader)"),
        (Trainer.train, "self.checkpointer.load(step=config.checkpoint.load_step)"),
        (Trainer.train_step, "for _ in range(self.gradient_accumulation_steps):"),
        (Trainer.train_step, "self.lr_schedulers.step()"),
        (Trainer.post_dataloading_process, "self.ntokens_seen += labels.numel()"),
        (Trainer.batch_generator, "self.metrics_processor.ntokens_since_last_log += "),
        (CheckpointManager, "DATALOADER: dataloader"),
        (LRSchedulersContainer.state_dict, 'return {"last_epoch": '),
        (Validator.validate, "validation_dataloader = self.dl_config.build("),
        (Validator.validate, "inputs, labels, extra_kwargs = self.post_dataloading_process("),
        (Validator.__init__, "self.dl_config = "),
        (attention.create_attention_mask, "_compiled_create_block_mask("),
    ],
)
def test_the_steps_overrides_hook_into_are_still_there(function: Any, line: str) -> None:
    source = inspect.getsource(function)
    assert line in source, (
        f"torchtitan's {function.__qualname__} no longer has {line!r}, which titan_integration "
        "builds on; read the new version before allowing it"
    )

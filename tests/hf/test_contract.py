"""What this package relies on in transformers and accelerate; a version that changes it fails here.

Run by every environment that the package supports: ``.venv`` has the newest version, the one that
``make llamafactory`` makes the lowest.
"""

import inspect
from typing import Any

import accelerate
import pytest
import transformers
from transformers import Trainer, TrainerState, trainer_callback
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from hf_integration import upstream

PUBLIC_METHODS = {
    "train": ["self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"],
    "get_train_dataloader": ["self"],
    "set_initial_training_values": ["self", "args", "dataloader"],
    "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "create_scheduler": ["self", "num_training_steps", "optimizer"],
    "log": ["self", "logs", "start_time"],
}
LINES = [
    (Trainer._inner_training_loop, "train_dataloader = self.get_train_dataloader()"),
    (Trainer._inner_training_loop, "self.set_initial_training_values("),
    (Trainer._inner_training_loop, "for epoch in range(epochs_trained, num_train_epochs):"),
    (Trainer, "self.get_batch_samples("),
    (Trainer, "if self.control.should_epoch_stop or self.control.should_training_stop:"),
    (Trainer, "do_sync_step = (step + 1) % self.args.gradient_accumulation_steps == 0"),
    (Trainer, "self.current_gradient_accumulation_steps = len(batch_samples)"),
    (Trainer, "self.callback_handler.on_optimizer_step("),
    (Trainer.train, "resume_from_checkpoint"),
    (Trainer._save_checkpoint, "self._save_rng_state(output_dir)"),
    (Trainer._save_checkpoint, "self.state.save_to_json(os.path.join(output_dir, TRAINER_STATE"),
    (Trainer.training_step, "self.current_gradient_accumulation_steps"),
    (Trainer.training_step, 'kwargs["scale_wrt_gas"] = False'),
    (Trainer.compute_loss, "self.model_accepts_loss_kwargs"),
    (Trainer.compute_loss, "num_items_in_batch"),
    (DefaultFlowCallback.on_step_end, "state.global_step >= state.max_steps"),
    (CallbackHandler.on_epoch_begin, "control.should_epoch_stop = False"),
    (CallbackHandler.call_event, "lr_scheduler=self.lr_scheduler"),
    (trainer_callback.ProgressCallback.on_train_begin, "self.training_bar = tqdm("),
    (accelerate.Accelerator.backward, "self.deepspeed_engine_wrapped.backward(loss"),
]


@pytest.mark.parametrize("name", PUBLIC_METHODS)
def test_public_methods_take_what_they_took(name: str) -> None:
    got = upstream.parameters_of(getattr(Trainer, name))
    assert got[: len(PUBLIC_METHODS[name])] == PUBLIC_METHODS[name], transformers.__version__


@pytest.mark.parametrize("name", upstream.PRIVATE_METHODS)
def test_private_methods_are_there_and_take_what_they_took(name: str) -> None:
    got = upstream.parameters_of(getattr(Trainer, name))
    assert got == upstream.PRIVATE_METHODS[name], transformers.__version__


@pytest.mark.parametrize(
    ("owner", "line"), LINES, ids=lambda value: getattr(value, "__qualname__", str(value))[:60]
)
def test_the_lines_that_are_built_on_are_still_there(owner: Any, line: str) -> None:
    assert line in inspect.getsource(owner), (
        f"transformers {transformers.__version__} no longer has {line!r}, which hf_integration "
        "builds on; read the new version before allowing it"
    )


def test_the_state_has_what_is_written_to_it() -> None:
    state = TrainerState()
    assert (state.max_steps, state.global_step, state.epoch) == (0, 0, 0) or state.epoch is None


@pytest.mark.parametrize("name", upstream.__all__)
def test_every_name_of_upstream_is_there(name: str) -> None:
    assert getattr(upstream, name) is not None

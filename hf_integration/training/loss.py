"""The exact loss where the model gives a mean: its share of the step's tokens as its weight.

Most causal models of transformers sum their token losses and divide by ``num_items_in_batch``, the
tokens of all ranks and accumulated batches; those need nothing. A model that returns a mean over
its own tokens is weighed here: n tokens of this batch and N of the whole step give the weight
``n / N``, times the ranks that DDP averages over. The same weights are right for what a model adds
to its mean, such as the router loss of a mixture of experts: they sum to 1 over a step, where
stock adds it once per batch and rank.
"""

from typing import Any

import torch

from hf_integration.upstream import divides_by_accumulation, unwrapped


def needs_weights(trainer: Any) -> bool:
    """Whether losses come as means that have to be weighed, rather than by token count."""
    if trainer.compute_loss_func is not None:
        return False
    if trainer.label_smoother is not None:
        return True  # versions before 5.15 take a mean, whatever the model takes
    return not trainer.model_accepts_loss_kwargs or _gives_a_mean(trainer)


def _gives_a_mean(trainer: Any) -> bool:
    """Whether the model takes ``num_items_in_batch`` without using it for all of its loss."""
    config = getattr(unwrapped(trainer), "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return True
    if hasattr(trainer, "aux_loss_enabled"):
        return False  # TRL takes the router loss out of the model's and averages it itself
    return bool(getattr(config, "output_router_logits", False))


def weight_factor(trainer: Any) -> int:
    """What undoes the averaging over ranks, and over accumulated batches where there is one."""
    factor = int(trainer.accelerator.num_processes)
    if divides_by_accumulation(trainer):
        factor *= trainer.current_gradient_accumulation_steps
    return factor


def zero_loss(outputs: Any) -> torch.Tensor:
    """A loss of 0 whose backward pass runs: a mean over no token is 0 / 0."""
    values = outputs.values() if hasattr(outputs, "values") else outputs
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad and v.ndim > 0]
    if not tensors:
        raise ValueError(
            "a batch without a label that carries loss needs the model's logits: the model returns "
            "no tensor beside its loss"
        )
    return tensors[0].float().sum() * 0.0

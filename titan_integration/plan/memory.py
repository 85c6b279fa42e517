"""How many tokens a step may have: an estimate from the model's shape and the GPUs' memory."""

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titan_integration.errors import UserError

STATE_BYTES = 16  # per parameter, sharded: float32 weights, gradients and two moments of AdamW
GATHERED_BYTES = 4  # per parameter of a layer in use: bfloat16 weights, and those prefetched
LAYER_BYTES = 34  # per token, layer and unit of width: what the backward pass needs of a layer
LOGIT_BYTES = 10  # per token and word: bfloat16 logits, their float32 copy and its gradient
USABLE = 0.85  # of the memory; the rest is fragments, the framework and other processes
ROUND_TO = 256  # tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What an estimate needs to know of a decoder.

    Attributes:
        name: For messages.
        parameters: In all.
        layers: Blocks.
        dim: Width.
        vocab: Words of the output layer.
    """

    name: str
    parameters: int
    layers: int
    dim: int
    vocab: int

    def fixed_bytes(self, gpus: int) -> int:
        """Memory per GPU that no batch changes, sharded over all GPUs."""
        layer = self.parameters // max(1, self.layers)
        return self.parameters * STATE_BYTES // gpus + 2 * layer * GATHERED_BYTES

    def token_bytes(self) -> int:
        """Memory per token of a batch: all layers' activations and the logits.

        Attention is not stored, as in flash attention.
        Source of the 34 bytes: Korthikanti et al., "Reducing activation recomputation in large
        transformer models", 2022, without the attention matrix.
        """
        return LAYER_BYTES * self.dim * self.layers + LOGIT_BYTES * self.vocab


def budget_in(memory_gb: float, shape: ModelShape, gpus: int) -> int:
    """Tokens per GPU and step that fit, a multiple of 256; an estimate, without recomputation.

    Raises:
        UserError: Not even the model fits.
    """
    free = memory_gb * 1e9 * USABLE - shape.fixed_bytes(gpus)
    tokens = int(free / shape.token_bytes()) // ROUND_TO * ROUND_TO if free > 0 else 0
    if tokens < ROUND_TO:
        need = shape.fixed_bytes(gpus) + ROUND_TO * shape.token_bytes()
        raise UserError(
            f"{shape.name} needs about {need / USABLE / 1e9:.0f} GB per GPU on {gpus} GPUs, got "
            f"--memory_gb {memory_gb:g}; take more GPUs, or train fewer weights"
        )
    return tokens


def shape_of_folder(folder: Path) -> ModelShape | None:
    """The shape in a Hugging Face ``config.json`` beside the tokenizer; None without one."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values = values.get("text_config", values)
        return _shape_of_values(folder.name, values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # of something else than a decoder


def _shape_of_values(name: str, values: dict[str, Any]) -> ModelShape:
    dim, layers, vocab = (
        int(values[key]) for key in ("hidden_size", "num_hidden_layers", "vocab_size")
    )
    heads = int(values["num_attention_heads"])
    head_dim = int(values.get("head_dim") or dim // heads)
    groups = int(values.get("num_key_value_heads") or heads)
    attention = 2 * dim * head_dim * (heads + groups)
    feed_forward = 3 * dim * int(values.get("moe_intermediate_size") or values["intermediate_size"])
    experts = int(values.get("num_experts") or values.get("num_local_experts") or 1)
    tables = vocab * dim * (1 if values.get("tie_word_embeddings") else 2)
    parameters = layers * (attention + experts * feed_forward) + tables
    return ModelShape(name=name, parameters=parameters, layers=layers, dim=dim, vocab=vocab)


def shape_of_config(module: str, name: str) -> ModelShape:
    """The shape of the model of a configuration, ``--module`` and ``--config`` as in training.

    Raises:
        UserError: There is no such configuration, or its model is no decoder.
    """
    import torch

    try:
        config = getattr(importlib.import_module(module), name)()
        model = config.model_spec.model
        with torch.device("meta"):
            parameters = sum(p.numel() for p in model.build().parameters())
        return ModelShape(
            name=name,
            parameters=parameters,
            layers=len(model.layers),
            dim=model.dim,
            vocab=model.vocab_size,
        )
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(f"no model in --module {module} --config {name}: {error}") from error

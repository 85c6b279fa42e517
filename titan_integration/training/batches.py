"""What batches a configuration makes: their layout, whether their shape is fixed, their cost."""

from typing import Any, Literal

import torch

from titan_integration.data.config import DataConfig
from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.training.dense_attention import DenseFlexAttention
from titan_integration.upstream import (
    FlexAttention,
    ModelSpec,
    ScaledDotProductAttention,
    Trainer,
    VarlenAttention,
)

_SOME_LENGTH = 4096  # any will do: the count is linear in it


def uses(config: Trainer.Config, *kinds: type) -> list[Any]:
    """The parts of the model's configuration that are of these kinds."""
    if config.model_spec is None:
        return []
    model = config.model_spec.model
    return [found for kind in kinds for _, found, _, _ in model.traverse(kind)]


def has_sdpa(config: Trainer.Config) -> bool:
    """Whether some layer attends to all that came before in a row, whatever sample it is of."""
    return bool(uses(config, ScaledDotProductAttention.Config))


def layout_of(config: Trainer.Config, data: DataConfig) -> Literal["padded", "packed"]:
    """The layout as set, else what the model's attention is best at."""
    if data.odb.layout is not None:
        return data.odb.layout
    documents = bool(uses(config, FlexAttention.Config, VarlenAttention.Config))
    return "packed" if documents and not has_sdpa(config) else "padded"


def is_fixed(config: Trainer.Config, data: DataConfig) -> bool:
    """Whether all batches have one shape."""
    return layout_of(config, data) == "packed" and data.odb.shape == "fixed"


def cost_of(config: Trainer.Config, data: DataConfig) -> tuple[float, float]:
    """What a token and a pair of tokens of a sample cost the model; see ``odb_loader``."""
    if data.odb.cost is not None:
        return 1.0, data.odb.cost
    dense = bool(uses(config, DenseFlexAttention.Config))  # over all of a row, whatever is in it
    if config.model_spec is None or dense:
        return 1.0, 0.0
    return model_cost(config.model_spec)


def model_cost(spec: ModelSpec) -> tuple[float, float]:
    """Operations per token, and per pair of tokens of a document, forward and backward.

    torchtitan counts ``c0 + c1 * seq_len`` operations per token, where each token attends to all
    ``seq_len`` tokens. With causal attention it sees half of its document on average, so that a
    document of L tokens takes ``c0 * L + c1 / 2 * L * L``. For a model of 8B parameters, 32 layers
    and 4,096 dimensions the ratio is 1.75e-5: at 8,192 tokens attention adds 14 %.

    Built without storage: it takes no memory to speak of.
    """
    with torch.device("meta"):
        model = spec.model.build()
    _, short = spec.model.get_nparams_and_flops(model, _SOME_LENGTH)
    _, double = spec.model.get_nparams_and_flops(model, 2 * _SOME_LENGTH)
    per_pair = (double - short) / _SOME_LENGTH
    return float(short - per_pair * _SOME_LENGTH), per_pair / 2


def describe_batches(config: Trainer.Config, data: DataConfig, loader: OdbDataLoader.Config) -> str:
    """In one line: the layout, why, and what a sample is taken to cost."""
    odb = loader.data.odb
    why = "as set" if data.odb.layout else f"as {_attention(config)} asks"
    told = f"Batches are {odb.layout} ({why}), at most {odb.token_budget:,} tokens"
    if odb.layout == "packed":
        told += f" in {odb.rows} row{'s' if odb.rows > 1 else ''} of {odb.shape} shape"
    per_pair = loader.cost[1] / loader.cost[0]
    return f"{told}; a sample of L tokens costs L + {per_pair:.3g} L^2"


def _attention(config: Trainer.Config) -> str:
    kinds = (ScaledDotProductAttention, VarlenAttention, FlexAttention)
    names = [kind.__name__ for kind in kinds if uses(config, kind.Config)]
    return " and ".join(names) or "a model without either attention"

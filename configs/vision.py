"""Changes to the vision towers of torchtitan's model specifications."""

import dataclasses
from importlib import import_module
from typing import Any

from configs.debug import debug_config
from configs.models import with_dense_flex, with_documents
from titan_integration.attention.documents import DocumentAttention
from titan_integration.cpu import is_cpu_only
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import ModelSpec, VarlenAttention

DEBUG_PIXELS = (4_096, 131_072)  # fewest and most of a picture
FLAT_TOWERS = {  # name of a specification -> module and class
    "qwen3_5": ("qwen3_5", "FlatQwen35VisionEncoder"),
    "muse_glimmer": ("muse_glimmer", "FlatMuseGlimmerVisionEncoder"),
    "kimi_k2_5": ("kimi_k2_7", "FlatKimiK25VisionEncoder"),
}


def with_flat_tower(spec: ModelSpec) -> ModelSpec:
    """Run the tower over pictures end to end, without padding; changes and returns ``spec``.

    Attention is by varlen kernels, or by one SDPA per picture where there is no accelerator.
    """
    model: Any = spec.model
    tower = _changed(model.vision_encoder, _flat_kind(spec.name))
    attention = DocumentAttention if is_cpu_only() else VarlenAttention
    tower.block.attn.inner_attention = attention.Config(window_size=(-1, -1))
    model.vision_encoder = tower
    return spec


def for_cpu(spec: ModelSpec, *, masks: bool = False) -> ModelSpec:
    """What trains on a machine without an accelerator; changes and returns ``spec``.

    Args:
        spec: Its tower may be flat already.
        masks: For a language model whose masks are more than causal per document.
    """
    if spec.name == "qwen3_5":
        from titan_integration.vision.delta_net import DocumentDeltaKernel, DocumentDeltaNet

        model: Any = spec.model
        for layer in model.layers:
            if layer.delta_net is not None:
                layer.delta_net = _changed(layer.delta_net, DocumentDeltaNet.Config)
                layer.delta_net.kernel = _changed(
                    layer.delta_net.kernel, DocumentDeltaKernel.Config
                )
    return with_dense_flex(spec) if masks else with_documents(spec)


def debug_pictures(spec: ModelSpec) -> OdbTrainer.Config:
    """A run of minutes on two CPU cores, on the rows with pictures that ``make train-vl`` makes."""
    config = debug_config(spec, hf_assets_path="outputs/pictures/tokenizer")
    config.data.path = ["outputs/pictures/rows.jsonl"]
    config.data.min_pixels, config.data.max_pixels = DEBUG_PIXELS
    config.data.too_long = "drop"
    config.data.odb.token_budget = 2048
    config.training.seq_len = 4096  # the most that torchtitan's debug models take
    return config


def _flat_kind(name: str) -> Any:
    """The configuration of the flat tower of a family, imported only when it is asked for."""
    if name not in FLAT_TOWERS:
        raise ValueError(f"a flat tower is known of {', '.join(FLAT_TOWERS)}, got {name!r}")
    module, kind = FLAT_TOWERS[name]
    return getattr(import_module(f"titan_integration.vision.{module}"), kind).Config


def _changed(config: Any, kind: Any) -> Any:
    """The same settings for a subclass."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init}
    return kind(**values)

"""Everything that this project takes from torchtitan, gathered where a port has to look.

The names are imported when they are first asked for: a worker process that only tokenizes imports
the tokenizer alone, and :func:`titan_integration.cpu.patch` can run before torchtitan is imported.
``tests/titan/test_contract.py`` looks up each of them, and what else is relied on, one by one.
"""

import ast
import importlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtitan.components.checkpointer import BaseCheckpointManager, CheckpointManager
    from torchtitan.components.dataloader import BaseDataLoader, ParallelAwareDataloader
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.metrics import DeviceMemStats, MetricsProcessor
    from torchtitan.components.optimizer import (
        LRSchedulersContainer,
        OptimizersContainer,
        default_adamw,
    )
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.components.validate import Validator
    from torchtitan.config import TORCH_DTYPE_MAP, ConfigManager, DebugConfig, TrainingConfig
    from torchtitan.hf_datasets.text_datasets import ChatDataset
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import (
        FlexAttention,
        ScaledDotProductAttention,
        VarlenAttention,
        VarlenMetadata,
        create_varlen_metadata_for_document,
    )
    from torchtitan.models.common.config_utils import (
        decoder_vocab_size,
        make_ffn_config,
        make_gqa_config,
    )
    from torchtitan.models.common.decoder import Decoder
    from torchtitan.models.common.rope import CosSinRoPE
    from torchtitan.models.common.token_dispatcher import (
        DeepEPTokenDispatcher,
        HybridEPTokenDispatcher,
        LocalTokenDispatcher,
        MinimalAsyncEPTokenDispatcher,
    )
    from torchtitan.models.deepseek_v3 import model_registry as deepseek_v3_registry
    from torchtitan.models.gpt_oss import model_registry as gpt_oss_registry
    from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts
    from torchtitan.models.kimi_k2_7 import model_registry as kimi_k2_7_registry
    from torchtitan.models.kimi_k2_7.vision_encoder import KimiK25VisionEncoder
    from torchtitan.models.llama3 import config_registry as llama3_configs
    from torchtitan.models.llama3 import model_registry as llama3_registry
    from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
    from torchtitan.models.muse_glimmer import model_registry as muse_glimmer_registry
    from torchtitan.models.muse_glimmer.vision_encoder import (
        MuseGlimmerVisionEncoder,
        reorder_patch_vector,
    )
    from torchtitan.models.qwen3 import config_registry as qwen3_configs
    from torchtitan.models.qwen3 import model_registry as qwen3_registry
    from torchtitan.models.qwen3_5 import model_registry as qwen3_5_registry
    from torchtitan.models.qwen3_5.model import GatedDeltaKernel, GatedDeltaNet
    from torchtitan.models.qwen3_5.vision_encoder import Qwen35VisionEncoder
    from torchtitan.protocols.model_spec import ModelSpec
    from torchtitan.trainer import Trainer


def relied_on() -> dict[str, tuple[str, str]]:
    """Every name above with its module and its name there, as the imports say.

    ``from torchtitan.models.qwen3 import model_registry as qwen3_registry`` becomes
    ``{"qwen3_registry": ("torchtitan.models.qwen3", "model_registry")}``.
    """
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(ast.parse(Path(__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torchtitan")
        for alias in node.names
    }


_SOURCES = relied_on()


def find(module: str, name: str) -> Any:
    """``name`` of torchtitan's ``module``, which may itself be a module.

    Raises:
        ImportError: torchtitan is not installed, or its version has no such name.
    """
    try:
        owner = importlib.import_module(module)
        return getattr(owner, name) if hasattr(owner, name) else _submodule(module, name)
    except ImportError as error:
        raise ImportError(f"{_installed()} has no {module}.{name}: {error}; {_REMEDY}") from error


_REMEDY = (
    "install the one that odb-nodes is made for by pip install 'odb-nodes[titan]', or see with "
    "tests/titan/test_contract.py what another one changed"
)


def _submodule(module: str, name: str) -> Any:
    return importlib.import_module(f"{module}.{name}")


def _installed() -> str:
    try:
        return f"torchtitan {version('torchtitan')}"
    except PackageNotFoundError:
        return "an environment without torchtitan"


def __getattr__(name: str) -> Any:
    """Import what a module of this project asks for by ``from ... import name``."""
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = find(*_SOURCES[name])
    globals()[name] = found  # The next time it is found without a call.
    return found


def replace_for_cpu(*, memory_monitor: Any, create_block_mask: Any) -> None:
    """Put other functions in the place of two that a machine without an accelerator lacks.

    Args:
        memory_monitor: Builds what ``MetricsProcessor`` asks for peak memory; it looks the
            builder up in its module's globals.
        create_block_mask: What builds flex attention's masks, compiled in torchtitan.
    """
    from torchtitan.components import metrics
    from torchtitan.models.common import attention, vision_encoder

    metrics.build_device_memory_monitor = memory_monitor
    attention._compiled_create_block_mask = create_block_mask
    vision_encoder.compiled_create_block_mask = create_block_mask  # before a tower imports it


def run_main(config: Any) -> None:
    """torchtitan's ``main`` with a configuration that was parsed already, and our logging."""
    from torchtitan import train

    class Parsed:
        def parse_args(self) -> Any:
            return config

    main: Any = train
    main.ConfigManager, main.init_logger = Parsed, lambda: None
    main.main()


def watch_grad_norm(note: Callable[[Any], None]) -> None:
    """Have ``note`` called with the gradient norm of every step; the latest caller gets it."""
    from torchtitan.distributed import utils

    global _clip_grad_norm
    _clip_grad_norm = _clip_grad_norm or utils.clip_grad_norm_

    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        assert _clip_grad_norm is not None
        norm = _clip_grad_norm(*args, **kwargs)
        note(norm)
        return norm

    utils.clip_grad_norm_ = clip_grad_norm_


_clip_grad_norm: Callable[..., Any] | None = None
LOSS_NOT_FINITE = "Loss is not finite"  # begins the error that torchtitan's train_step raises

"""Small random vision-language models, rows with pictures, and what one process makes of them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from hf_integration.data.pictures import geometry_of
from odb_nodes.vision import expand_pictures, read_picture
from tests.vision.drawn import IMAGE_ID, as_bytes, noise

VOCAB, PATCH = 97, 8
HALF = [0.5, 0.5, 0.5]
PROCESSOR = Qwen2VLImageProcessorPil(
    patch_size=PATCH,
    image_mean=HALF,
    image_std=[0.25, 0.5, 0.5],
    size={"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
)
GEOMETRY = geometry_of(PROCESSOR)
_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": PATCH,
    "out_hidden_size": 32,
}
_IDS = {"image_token_id": IMAGE_ID, "video_token_id": 91, "vision_start_token_id": 92}


def qwen3_vl() -> Any:
    """Two layers each, features of the tower's first layer in the first layer of the texts."""
    torch.manual_seed(1)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    config = Qwen3VLConfig(
        text_config={**_TEXT, "head_dim": 8, "rope_parameters": rope},
        vision_config={
            **_TOWER,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        **_IDS,
    )
    return Qwen3VLForConditionalGeneration(config)


def qwen2_5_vl() -> Any:
    """Two layers each, one of the tower's within windows."""
    torch.manual_seed(1)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    config = Qwen2_5_VLConfig(
        text_config={**_TEXT, "rope_parameters": rope},
        vision_config={
            **_TOWER,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        **_IDS,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


MODELS = {"Qwen3-VL": qwen3_vl, "Qwen2.5-VL": qwen2_5_vl}


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Let the models, which compute norms and rotations in float32, compute them in float64."""
    plain = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        keeps = self.dtype == torch.float64 and torch.float32 in (*args, *kwargs.values())
        return self if keeps else plain(self, *args, **kwargs)

    def as_float(self: torch.Tensor) -> torch.Tensor:
        return plain(self, torch.float64)

    with patch.object(torch.Tensor, "to", to), patch.object(torch.Tensor, "float", as_float):
        yield


class PictureRows:
    """Rows of words and pictures, by what they are to have.

    Args:
        kinds: Pictures of each row.
        seed: Of words and pictures.
    """

    def __init__(self, kinds: str, seed: int = 0) -> None:
        self.rows = []
        random = np.random.default_rng(seed)
        for kind in kinds:
            images = [
                noise(int(random.integers(16, 90)), int(random.integers(16, 90)), seed + i)
                for i in range(int(kind))
            ]
            ids = random.integers(1, 80, int(random.integers(6, 25)))
            for i in range(len(images)):
                ids = np.insert(ids, 2 + 3 * i, IMAGE_ID)
            labels = np.where((ids == IMAGE_ID) | (np.arange(len(ids)) < len(ids) // 2), -100, ids)
            self.rows.append((images, {"input_ids": ids, "labels": labels}))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        images, columns = self.rows[index]
        pictures = [read_picture(as_bytes(image), GEOMETRY) for image in images]
        expanded = expand_pictures(columns, pictures, GEOMETRY, IMAGE_ID)
        return {**expanded, "pictures": pictures}

    def images(self, index: int) -> list[Image.Image]:
        return list(self.rows[index][0])


def reference(model: Any, rows: PictureRows, indices: list[int]) -> dict[str, torch.Tensor]:
    """Gradients of the mean loss, row by row in float64, in transformers' own way and no other.

    Pixels and grids come from its processor, positions from the model, rows without pictures are
    texts.
    """
    twin = copy.deepcopy(model).double().train()
    twin.zero_grad(set_to_none=True)
    total = 0
    for index in indices:
        row = rows[index]
        ids = torch.tensor(row["input_ids"])[None]
        inputs: dict[str, Any] = {"input_ids": ids}
        images = rows.images(index)
        if images:
            inputs |= dict(PROCESSOR(images, return_tensors="pt"))
            inputs["mm_token_type_ids"] = (ids == IMAGE_ID).int()
        labels = torch.tensor(row["labels"])[1:]
        logits = twin(**inputs).logits[0, :-1]
        F.cross_entropy(logits, labels, reduction="sum").backward()
        total += int((labels != -100).sum())
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad / max(1, total)
        for name, p in twin.named_parameters()
    }


def worst_difference(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]
) -> tuple[float, float]:
    """Largest relative difference of all gradients together, and of the tower's.

    The tower's is its largest value where it should be 0 throughout.
    """

    def difference(names: list[str]) -> float:
        apart = sum(float((found[n].double() - wanted[n]).square().sum()) for n in names) ** 0.5
        size = sum(float(wanted[n].square().sum()) for n in names) ** 0.5
        return apart / size if size else max(float(found[n].abs().max()) for n in names)

    return difference(list(wanted)), difference([n for n in wanted if ".visual." in n])

"""Pictures as Hugging Face's vision-language models take them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_integration.errors import Refusal
from odb_nodes import PackCollate
from odb_nodes.vision import Geometry, VisionCollate, to_pixel_values
from odb_nodes.vision.expand import PICTURES

PATCHES, ROOM = "patches", "room"
_NEEDED = ("patch_size", "merge_size", "temporal_patch_size", "size", "image_mean", "image_std")


def geometry_of(processor: Any, **changes: Any) -> Geometry:
    """The geometry of a Qwen-VL processor, or of its image processor.

    Args:
        processor: Of the model, e.g. ``AutoProcessor.from_pretrained(...)``.
        changes: Fields of ``Geometry`` to have otherwise, as ``max_pixels``.
    Raises:
        Refusal: It does not cut pictures into patches of a scaled picture, as those of Qwen2-VL,
            Qwen2.5-VL and Qwen3-VL do.
    """
    images = getattr(processor, "image_processor", processor)
    missing = [name for name in _NEEDED if not hasattr(images, name)]
    limits = dict(getattr(images, "size", None) or {})
    if missing or not {"shortest_edge", "longest_edge"} <= limits.keys():
        raise Refusal(
            f"pictures are known of the image processors of Qwen2-VL to Qwen3-VL, got "
            f"{type(images).__name__}; give VisionCollate a Geometry of your own"
        )
    found = {
        "patch": images.patch_size,
        "merge": images.merge_size,
        "frames": images.temporal_patch_size,
        "min_pixels": limits["shortest_edge"],
        "max_pixels": limits["longest_edge"],
        "mean": tuple(images.image_mean),
        "std": tuple(images.image_std),
    }
    return Geometry(**{**found, **changes})


class PictureCollate(VisionCollate):
    """``VisionCollate`` for Qwen2-VL, Qwen2.5-VL and Qwen3-VL of transformers.

    Besides the keys of the text collate a batch has::

        image_grid_thw  int64[N, 3]
        position_ids    int64[3, B, L]  by frame, row and column; [4, B, L] of packed rows, where
                                        numbers that restart in every document come first
        use_cache       False           of packed rows
        patches         uint8[S, 3 * patch * patch]
        room            samples without a picture, whose length counts a token more

    ``model_inputs`` makes ``pixel_values`` of the patches, on the device; a Trainer with the mixin
    of this package calls it by itself. Packed rows need ``PackCollate(form="position_ids")`` or,
    for flash attention, ``form="transformers"``.

    Args:
        args: As ``VisionCollate``.
        kwargs: As ``VisionCollate``.
    Raises:
        Refusal: Packed rows in a form that these models do not take.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(self.text, PackCollate) and self.text.form == "cu_seqlens":
            raise Refusal(
                'PackCollate must have form="position_ids" or, for flash attention, '
                'form="transformers", got form="cu_seqlens", which these models do not know'
            )

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate; see the class for the keys of the result."""
        batch = super().__call__(samples)
        positions = batch.pop("positions3").permute(2, 0, 1)
        numbers = batch.pop("positions", batch.get("position_ids"))
        if numbers is not None:
            positions = torch.cat([numbers[None], positions])
            batch["use_cache"] = False  # with a cache these models let documents see each other
        batch["position_ids"] = positions.contiguous()
        batch[ROOM] = sum(not sample[PICTURES] for sample in samples)
        batch["image_grid_thw"] = batch.pop("grid_thw")
        return batch

    def model_inputs(
        self, batch: Mapping[str, Any], device: torch.device | str | None = None
    ) -> dict[str, Any]:
        """The batch on a device, with "pixel_values" instead of "patches".

        Args:
            batch: Of this collate.
            device: None is where the batch is.
        """
        moved = {
            key: value.to(device, non_blocking=True)
            if device is not None and isinstance(value, torch.Tensor)
            else value
            for key, value in batch.items()
            if key not in (PATCHES, ROOM)
        }
        return moved | {"pixel_values": to_pixel_values(batch[PATCHES], self.geometry, device)}

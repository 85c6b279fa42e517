"""What each family of vision-language models makes of a picture, read off its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from odb_nodes.vision import Geometry
from titan_integration.data.config import DataConfig
from titan_integration.data.pictures.vision import Vision
from titan_integration.errors import UserError
from titan_integration.upstream import ModelSpec, VarlenAttention

MIN_PIXELS, MAX_PIXELS = 65_536, 16_777_216  # as torchtitan's own configurations have them


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family.

    Attributes:
        patch: Field of the tower's configuration with the side of a patch in pixels.
        merge: Field with the side of a token in patches; a number, or a pair of equal ones.
        frames: Field with the frames of a patch; None for one.
        order: In which the tower takes patches: "raster", row by row, or "merge", token by token.
        has_grid_positions: Whether positions are of frames, rows and columns.
        start_token: Before a picture.
        image_token: Of a picture.
        video_token: Of a film.
        end_token: After a picture.
    """

    patch: str = "patch_size"
    merge: str
    frames: str | None = None
    order: Literal["merge", "raster"] = "raster"
    has_grid_positions: bool = False
    start_token: str = "<|vision_start|>"
    image_token: str = "<|image_pad|>"
    video_token: str = "<|video_pad|>"
    end_token: str = "<|vision_end|>"


FAMILIES: Mapping[str, Family] = {  # by the name of the model's specification
    "qwen3_5": Family(
        merge="spatial_merge_size",
        frames="temporal_patch_size",
        order="merge",
        has_grid_positions=True,
    ),
    "muse_glimmer": Family(merge="downsample_factor", frames="patch_temporal"),
    "kimi_k2_5": Family(
        merge="merge_kernel_size",
        start_token="<|media_begin|>",
        image_token="<|media_pad|>",
        video_token="<|media_pad|>",
        end_token="<|media_end|>",
    ),
}


def tower_of(spec: ModelSpec | None) -> Any:
    """The configuration of a model's vision tower; None where it has none."""
    return None if spec is None else getattr(spec.model, "vision_encoder", None)


def is_recurrent(spec: ModelSpec | None) -> bool:
    """Whether some layers carry a state from token to token, beyond documents without masks."""
    return spec is not None and spec.name == "qwen3_5"


def is_flat(tower: Any) -> bool:
    """Whether a tower's configuration is of one that takes pictures end to end."""
    attention = None if tower is None else tower.block.attn.inner_attention
    return isinstance(attention, VarlenAttention.Config)


def vision_of(spec: ModelSpec | None, data: DataConfig) -> Vision | None:
    """How a model takes pictures; None if it takes texts only.

    Raises:
        UserError: Its family is not known, or no picture has as many pixels as the data section
            says.
    """
    tower = tower_of(spec)
    if spec is None or tower is None:
        return None
    family = FAMILIES.get(spec.name)
    if family is None:
        raise UserError(f"pictures are known of {', '.join(FAMILIES)}, got {spec.name!r}")
    least = MIN_PIXELS if data.min_pixels is None else data.min_pixels
    most = MAX_PIXELS if data.max_pixels is None else data.max_pixels
    patch, merge = getattr(tower, family.patch), _side(getattr(tower, family.merge))
    if not max(least, (patch * merge) ** 2) <= most:
        raise UserError(
            f"data.max_pixels must be at least data.min_pixels, {least}, and a token's "
            f"{(patch * merge) ** 2} pixels, got {most}; set --data.max_pixels and "
            "--data.min_pixels"
        )
    geometry = Geometry(
        patch=patch,
        merge=merge,
        frames=1 if family.frames is None else getattr(tower, family.frames),
        min_pixels=least,
        max_pixels=most,
        order=family.order,
    )
    return Vision(
        geometry=geometry,
        image_token=family.image_token,
        video_token=family.video_token,
        start_token=family.start_token,
        end_token=family.end_token,
        has_grid_positions=family.has_grid_positions,
        image_dir=data.image_dir,
    )


def _side(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])

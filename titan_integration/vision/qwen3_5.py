"""Qwen3.5's vision tower over pictures end to end; needs ``fla-core`` to be imported."""

from dataclasses import dataclass

import torch

from titan_integration.upstream import CosSinRoPE, Qwen35VisionEncoder
from titan_integration.vision.segments import encoded, lengths_of, stacked


class FlatQwen35VisionEncoder(Qwen35VisionEncoder):
    """The same tower without padding between pictures; see ``configs.vision.with_flat_tower``.

    Relies on torchtitan 0.3 for: the names of the tower's parts, and
    ``compute_position_embeddings`` of one picture.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen35VisionEncoder.Config):
        """No settings of its own."""

    def forward(self, pixel_values: torch.Tensor, *, grid_thw: torch.Tensor) -> torch.Tensor:
        """Encode ``[1, patches, patch size]``; gives ``[pictures, most tokens, text size]``."""
        x, grids = encoded(self, pixel_values, grid_thw, CosSinRoPE.apply_rotary_emb)
        return stacked(self.merger(x), [n // self.spatial_merge_unit for n in lengths_of(grids)])

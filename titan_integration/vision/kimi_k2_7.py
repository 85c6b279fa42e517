"""Kimi K2.7's vision tower over pictures end to end."""

from dataclasses import dataclass

import torch

from titan_integration.upstream import ComplexRoPE, KimiK25VisionEncoder
from titan_integration.vision.segments import Grid, encoded, lengths_of, split, stacked


class FlatKimiK25VisionEncoder(KimiK25VisionEncoder):
    """The same tower without padding between pictures; see ``configs.vision.with_flat_tower``.

    For pictures, not films: each has one frame. Relies on torchtitan 0.3 for: the names of the
    tower's parts, and ``compute_position_embeddings`` of one picture.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(KimiK25VisionEncoder.Config):
        """No settings of its own."""

    def forward(self, pixel_values: torch.Tensor, *, grid_thw: torch.Tensor) -> torch.Tensor:
        """Encode ``[1, patches, patch size]``; gives ``[pictures, most tokens, text size]``."""
        x, grids = encoded(self, pixel_values, grid_thw, ComplexRoPE.apply_rotary_emb)
        pictures = split(self.final_norm(x), lengths_of(grids))
        merged = [self._merged(one, grid) for one, grid in zip(pictures, grids, strict=True)]
        projected = self.projector(torch.cat(merged)[None])
        return stacked(projected, [len(one) for one in merged])

    def _merged(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        """``[h * w, D]`` in rows of patches as ``[tokens, tall * wide * D]``."""
        (_, h, w), (tall, wide) = grid, self.merge_kernel_size
        blocks = x.view(h // tall, tall, w // wide, wide, -1).transpose(1, 2)
        return blocks.reshape((h // tall) * (w // wide), -1)

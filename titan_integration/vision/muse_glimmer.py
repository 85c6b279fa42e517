"""Muse Glimmer's vision tower over pictures end to end, windows included."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from titan_integration.upstream import ComplexRoPE, MuseGlimmerVisionEncoder, reorder_patch_vector
from titan_integration.vision.segments import (
    Embeddings,
    Grid,
    embeddings,
    grids_of,
    lengths_of,
    segments,
    split,
)


class FlatMuseGlimmerVisionEncoder(MuseGlimmerVisionEncoder):
    """The same tower without padding between pictures; see ``configs.vision.with_flat_tower``.

    Most layers attend within windows: patches are put in the order of their windows, which are
    then segments as the pictures are. Relies on torchtitan 0.3 for: the names of the tower's
    parts, and ``compute_position_embeddings`` and ``_get_sparse_perm_and_slens`` of one picture.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MuseGlimmerVisionEncoder.Config):
        """No settings of its own."""

    def forward(self, pixel_values: torch.Tensor, *, grid_thw: torch.Tensor) -> torch.Tensor:
        """Encode ``[1, patches, patch size]``; gives ``[tokens, text size]``."""
        weight = self.conv1_linear.weight
        grids, total = grids_of(grid_thw), pixel_values.shape[1]
        lengths = lengths_of(grids)
        patches = reorder_patch_vector(
            pixel_values.to(device=weight.device, dtype=weight.dtype),
            patch_size=self.patch_size,
            patch_temporal=self.patch_temporal,
        )
        learned, rotation = embeddings(grids, total, self._of_one)
        x = self.ln_pre(self.conv1_linear(patches) + learned.to(weight.dtype))
        order = self._by_window(grids, total, x.device)
        x, rotation = x[:, order], rotation[:, order]
        pictures = segments(lengths, total, x.device)
        windows = segments(self._windows(grids), total, x.device)
        for i, block in enumerate(self.layers.values()):
            x = block(
                x,
                rope_cache=rotation,
                rope_apply=ComplexRoPE.apply_rotary_emb,
                attention_mask=pictures if self._layer_uses_global_attention(i) else windows,
            )
        x = self.ln_post(x[:, order.argsort()])
        return torch.cat(
            [
                self._pixel_shuffle_downsample(one, h, w)
                for one, (_, h, w) in zip(split(x, lengths), grids, strict=True)
            ]
        )

    def _of_one(self, grid: Grid, patches: int) -> Embeddings:
        device = self.conv1_linear.weight.device
        found: Embeddings = self.compute_position_embeddings([list(grid)], patches, device)
        return found

    def _by_window(self, grids: Sequence[Grid], total: int, device: torch.device) -> torch.Tensor:
        """``int64[total]``: which patch comes where, so that each window is in one piece."""
        parts, at = [], 0
        for _, h, w in grids:
            order, _ = self._get_sparse_perm_and_slens(h, w, device)
            parts.append(order + at)
            at += h * w
        return torch.cat([*parts, torch.arange(at, total, device=device)])

    def _windows(self, grids: Sequence[Grid]) -> list[int]:
        """Patches of each window, in that order; those at the edges are smaller.

        Worked example: windows of 2 x 2 in a picture of 3 x 4 patches have 4, 4, 2 and 2.
        """
        tall, wide = self.pos_emb_grid_h, self.pos_emb_grid_w
        return [
            min(tall, h - top) * min(wide, w - left)
            for _, h, w in grids
            for top in range(0, h, tall)
            for left in range(0, w, wide)
        ]

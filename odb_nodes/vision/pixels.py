"""Bytes of patches as the numbers that a tower takes, made on its device."""

import torch

from odb_nodes.vision.geometry import Color, Geometry


def to_pixel_values(
    patches: torch.Tensor,
    geometry: Geometry,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """``uint8[S, 3 * patch * patch]`` as ``dtype[S, 3 * frames * patch * patch]``.

    Values are scaled to [0, 1] and normalized in float32, and repeated for each frame of a patch:
    bit for bit what Hugging Face's processors (of the PIL kind) give, from an eighth of the bytes.

    Args:
        patches: As ``patches_of`` and ``VisionCollate`` give them.
        geometry: Of the tower.
        device: Where the values are to be; None is where the patches are.
        dtype: Of the values.
    """
    device = patches.device if device is None else torch.device(device)
    moved = patches.to(device, non_blocking=True)
    values = moved.view(len(moved), 3, 1, geometry.patch**2).to(torch.float32)
    # Tensors of the device, for a GPU divides by a number by multiplying with its inverse.
    values = values / torch.tensor(255.0, device=device)
    values = (values - _per_color(geometry.mean, device)) / _per_color(geometry.std, device)
    values = values.to(dtype).expand(-1, -1, geometry.frames, -1)
    return values.reshape(len(moved), geometry.frames * geometry.patch_size)


def _per_color(color: Color, device: torch.device) -> torch.Tensor:
    return torch.tensor(color, device=device).view(1, 3, 1, 1)

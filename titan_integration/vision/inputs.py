"""A batch's patches as a model's tower takes them, made on its device."""

from dataclasses import dataclass
from typing import Any

from torch.nn.utils.rnn import pad_sequence

from odb_nodes.vision import Geometry, to_pixel_values
from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.vision.sheet import Sheet

PATCHES, GRIDS = "patches", "grid_thw"


def tower_inputs(loader: OdbDataLoader | None) -> "TowerInputs | None":
    """For the batches of a loader; None if they have no pictures, or the loader is torchtitan's."""
    if loader is None or loader.config.vision is None:
        return None
    vision = loader.config.vision
    tokenizer = loader.encoder.tokenizer
    return TowerInputs(
        flat=loader.config.flat_tower,
        geometry=vision.geometry,
        special_tokens={
            "image_id": loader.encoder.image_id,
            # A model asks for it also where there are no films; no token has the id -1.
            "video_id": loader.encoder.image_id
            if vision.video_token == vision.image_token
            else tokenizer.token_to_id(vision.video_token) or -1,
        },
        sheet=Sheet(vision.geometry, loader.encoder.image_id),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TowerInputs:
    """Bytes in, floating numbers out, on whatever device the bytes are.

    Attributes:
        flat: Whether the tower takes pictures end to end; else they are padded to the largest.
        geometry: Of the tower.
        special_tokens: Ids that the model asks for.
        sheet: Keeps the first batches, for a person to look at.
    """

    flat: bool
    geometry: Geometry
    special_tokens: dict[str, int]
    sheet: Sheet

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments of the model for a batch of the loader.

        ``uint8[S, bytes of a patch]`` becomes ``float32[1, S, patch size]``, or, padded,
        ``[pictures, most patches, patch size]``. A batch without patches is returned as it is.
        """
        if PATCHES not in inputs:
            return inputs
        self.sheet.add(inputs)
        given = dict(inputs)
        values = to_pixel_values(given.pop(PATCHES), self.geometry)
        if self.flat:
            values = values[None]
        else:
            lengths = given[GRIDS].prod(-1).tolist()
            values = pad_sequence(values[: sum(lengths)].split(lengths), batch_first=True)
        return {**given, "pixel_values": values, "special_tokens": self.special_tokens}

"""Batches with pictures: what the core makes of them, and how many are real."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from odb_nodes import Rounding
from odb_nodes.types import IGNORE_INDEX
from odb_nodes.vision import VisionCollate
from titan_integration.data.pictures.vision import Vision

# A sample that nothing is learned from: what a rank without samples trains on meanwhile.
IDLE: Mapping[str, Any] = {"input_ids": [0], "labels": [IGNORE_INDEX], "pictures": []}
NUM_PICTURES, NUM_TEXTS = "num_pictures", "num_texts"
PATCH_MULTIPLE = 64  # where the number of patches is rounded


class Encodes(Protocol):
    """What of an encoder is asked."""

    @property
    def vision(self) -> Vision:
        """How the model takes pictures."""
        ...

    @property
    def image_id(self) -> int:
        """Of the token that stands for a picture."""
        ...


class PictureCollate:
    """Collates samples with ``pictures``, and tells how many of a batch's pictures are theirs.

    A batch without any has one black picture, whose one token stands in the padding: all ranks
    then run the same collectives. See ``odb_nodes.vision.VisionCollate``.

    Args:
        text: Collates what else is in the samples.
        encoder: Of the samples.
        shape_buckets: Most numbers of patches between one and its double; None rounds nothing.
    """

    def __init__(
        self,
        text: Callable[[Sequence[Any]], dict[str, Any]],
        encoder: Encodes,
        shape_buckets: int | None = None,
    ) -> None:
        vision = encoder.vision
        rounding = None
        if shape_buckets is not None:
            rounding = Rounding(multiple=PATCH_MULTIPLE, per_doubling=shape_buckets)
        self._collate = VisionCollate(
            text,
            vision.geometry,
            encoder.image_id,
            rounding=rounding,
            grid_positions=vision.has_grid_positions,
        )

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As the core's; ``num_pictures`` is 0 where there is the black one only.

        ``num_texts`` are the samples without a picture.
        """
        batch: dict[str, Any] = self._collate(samples)
        counts = [len(sample["pictures"]) for sample in samples]
        batch |= {NUM_PICTURES: sum(counts), NUM_TEXTS: counts.count(0)}
        return batch

"""Samples with pictures to tensors: texts by a collate of texts, pictures decoded in threads."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from odb_nodes.arguments import integer
from odb_nodes.batching.budget import Rounding
from odb_nodes.collate import PadCollate
from odb_nodes.errors import SampleError
from odb_nodes.pack import PackCollate
from odb_nodes.types import IGNORE_INDEX
from odb_nodes.vision.expand import PICTURES
from odb_nodes.vision.geometry import Geometry, Grid
from odb_nodes.vision.pictures import Bytes, Picture, patches_of
from odb_nodes.vision.positions import restarted_grid_positions

Sample = Mapping[str, Any]
TextCollate = Callable[[list[Sample]], dict[str, Any]]
_MOST_THREADS = 8


class VisionCollate:
    """Collates samples with pictures; every batch has at least one, so that all ranks do alike.

    A sample has "input_ids", in which each picture's placeholder stands once per token of it
    (``expand_pictures``), "labels", and "pictures", a list of ``Picture`` that may be empty. To the
    batch of ``text`` come::

        patches     uint8[S, 3 * patch * patch]  of all pictures, one after the other
        grid_thw    int64[N, 3]                  frames, rows and columns of their patches
        positions3  int64[B, L, 3]               of tokens by frame, row and column

    ``to_pixel_values`` makes numbers of the patches, on the device.

    A rank whose batch had no picture would not run the tower, and the others would wait for it in
    the tower's collectives. Such a batch gets a black picture of one token. Its token stands behind
    all tokens it could influence, in the padding of the shortest row or the tail of packed rows, at
    position 0 and with label -100: losses and gradients are those of the samples alone. Its room is
    what ``vision_length`` counts for samples without a picture.

    Args:
        text: Collates everything but pictures: ``PadCollate``, ``PackCollate``, or a function of
            one's own, which must put padding behind the tokens of a row.
        geometry: Of the tower.
        image_id: The id that stands for a token of a picture.
        threads: That decode; None is one per processor, 8 at most.
        rounding: Of S, where a compiled tower should see few shapes; what is added are zeros.
        grid_positions: Give "positions3".
    Raises:
        ValueError: An argument out of range.
        PictureError: From a call: a picture that cannot be decoded.
        SampleError: From a call: samples that do not match their pictures.
    """

    def __init__(
        self,
        text: TextCollate | None = None,
        geometry: Geometry | None = None,
        image_id: int | None = None,
        *,
        threads: int | None = None,
        rounding: Rounding | None = None,
        grid_positions: bool = True,
    ) -> None:
        if image_id is None:
            raise ValueError("image_id must be the id that stands for a picture's token, got None")
        self.image_id = integer("image_id", image_id, least=0)
        self.text = PadCollate() if text is None else text
        if getattr(self.text, "pad", {}).get("input_ids") == image_id:
            raise ValueError(f"image_id must be another token than the padding's, got {image_id}")
        self.geometry = Geometry() if geometry is None else geometry
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
        self.threads = min(_MOST_THREADS, processors) if threads is None else threads
        integer("threads", self.threads, least=1)
        self.rounding = Rounding() if rounding is None else rounding
        self.grid_positions = grid_positions
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate; keys of the result are those of ``text`` and the three above."""
        pictures = [picture for sample in samples for picture in _pictures(sample)]
        texts: list[Sample] = [
            {k: v for k, v in sample.items() if k != PICTURES} for sample in samples
        ]
        decoded = self._start(pictures)
        batch = self.text(texts) if pictures else self._with_filler(texts)
        side = self.geometry.merge
        grids = [picture.grid for picture in pictures] or [(1, side, side)]
        if self.grid_positions:
            batch["positions3"] = self._positions(batch, grids)
        batch["patches"] = self._joined(decoded())
        batch["grid_thw"] = torch.tensor(grids)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}  # threads stay in their process

    @property
    def idle(self) -> Sample:
        """A sample for ``odb_loader(filler=...)``: a rank without samples trains on it for nothing.

        It is text, so that no rank decodes pictures for nothing.
        """
        return {
            "input_ids": [getattr(self.text, "pad", {}).get("input_ids", 0)],
            "labels": [IGNORE_INDEX],
            PICTURES: [],
        }

    # Pictures

    def _start(self, pictures: Sequence[Picture]) -> Callable[[], list[Bytes]]:
        """Let the threads begin; the result waits for them."""
        if not pictures:
            black = np.zeros((self.geometry.merge**2, self.geometry.patch_size), np.uint8)
            return lambda: [black]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="odb-decode")
        found = self._pool.map(patches_of, pictures, [self.geometry] * len(pictures))
        return lambda: list(found)

    def _joined(self, parts: list[Bytes]) -> torch.Tensor:
        total = sum(map(len, parts))
        out = np.zeros((self.rounding.up(total), self.geometry.patch_size), np.uint8)
        np.concatenate(parts, out=out[:total])
        return torch.from_numpy(out)

    # The black picture

    def _with_filler(self, texts: list[Sample]) -> dict[str, Any]:
        if isinstance(self.text, PackCollate) and self.text.pad_documents_to == Rounding():
            batch = self.text([*texts, self._alone(texts[0])])
            for key in texts[0].keys() - self._per_token(texts[0]):
                batch[key] = batch[key][:-1]  # a list, in the order of the samples
        else:
            row = min(range(len(texts)), key=lambda i: len(texts[i]["input_ids"]))
            batch = self.text([self._longer(t) if i == row else t for i, t in enumerate(texts)])
        return self._set_apart(batch)

    def _alone(self, like: Sample) -> Sample:
        """The token of the black picture as a sample with the keys of another."""
        return {**like, **{key: self._value(key, like) for key in self._per_token(like)}}

    def _longer(self, sample: Sample) -> Sample:
        """A sample with the token of the black picture behind its own."""
        longer = {
            key: np.concatenate([np.asarray(sample[key]), self._value(key, sample)])
            for key in self._per_token(sample)
        }
        return {**sample, **longer}

    def _per_token(self, sample: Sample) -> set[str]:
        """The keys with a value per token."""
        known = getattr(self.text, "pad", None)
        if known is not None:
            return {key for key in sample if known.get(key) is not None}
        length = len(sample["input_ids"])
        return {key for key, value in sample.items() if _is_row(value) and len(value) == length}

    def _value(self, key: str, sample: Sample) -> npt.NDArray[Any]:
        pad = getattr(self.text, "pad", {}).get(key, 0)
        number = {"input_ids": self.image_id, "labels": IGNORE_INDEX}.get(key, pad)
        values = np.asarray(sample[key])
        return np.asarray([number], values.dtype if len(values) else np.int64)

    def _set_apart(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Let nothing be learned from the token, and it be a document of its own, at position 0."""
        places = torch.nonzero(batch["input_ids"] == self.image_id)
        if len(places) != 1:
            raise SampleError(
                f"samples without pictures hold {len(places) - 1} tokens of id {self.image_id}, "
                "which stands for a picture's token: take it out of their texts"
            )
        row, column = places[0].tolist()
        if "labels" in batch:  # a collate may make labels of all tokens
            batch["labels"][row, column] = IGNORE_INDEX
        if isinstance(self.text, PadCollate) and "positions" in batch:
            batch["positions"][row, column] = 0
        return batch

    # Positions

    def _positions(self, batch: Mapping[str, Any], grids: list[Grid]) -> torch.Tensor:
        ids = batch["input_ids"]
        is_picture = (ids == self.image_id).numpy().ravel()
        plain: torch.Tensor | None = batch.get("positions", batch.get("position_ids"))
        if plain is None:
            plain = torch.arange(ids.shape[1]).expand(ids.shape)
        elif plain.shape != ids.shape:
            raise SampleError(
                f"positions of the text collate must have the shape of input_ids, "
                f"{tuple(ids.shape)}, got {tuple(plain.shape)}"
            )
        numbers: npt.NDArray[np.int64] = plain.numpy().ravel()
        found = restarted_grid_positions(numbers, is_picture, grids, self.geometry.merge)
        return torch.from_numpy(found.reshape(*ids.shape, 3))


def _pictures(sample: Sample) -> Sequence[Picture]:
    if PICTURES not in sample:
        raise SampleError(
            'a sample needs "pictures", a list of Picture that may be empty, got '
            f"{sorted(map(str, sample))}"
        )
    found: Sequence[Picture] = sample[PICTURES]
    return found


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray | torch.Tensor)

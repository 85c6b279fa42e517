"""Samples between arrival and delivery, and how a state refers to them: by position or content."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from odb_nodes.errors import SampleError, StateError
from odb_nodes.state.content import pack_sample, unpack_sample
from odb_nodes.state.cursor import digest_range, pack_positions, unpack_positions
from odb_nodes.types import IGNORE_INDEX, Sample

Refs = bytes | list[bytes]  # samples in a state: packed positions, or packed contents
_TRIED = 64  # views that a rank without samples maps to find one that is not dropped


class BufferedSample(NamedTuple):
    """A sample between its arrival and its delivery.

    Attributes:
        sample: The sample.
        ref: What a state says of it: its position, or its packed content.
        loss_tokens: Its tokens that carry loss.
    """

    sample: Sample
    ref: Any
    loss_tokens: int


class SampleRefs(Protocol):
    """How the samples of a source are held, and found again from a state."""

    kind: str

    def hold(self, sample: Sample) -> BufferedSample:
        """What is kept beside a sample while it is held; all that can fail of it, fails here."""

    def join(self, refs: Iterable[Any]) -> Refs:
        """The references of held samples as they stand in a state."""

    def restore(self, refs: Any, what: str) -> list[BufferedSample]:
        """The held samples behind the references of a state, in order.

        Raises:
            StateError: The references are damaged.
        """

    def any_sample(self) -> BufferedSample | None:
        """A sample of this pass that is not dropped, whoever has emitted it, if one can be had."""

    def expected_digest(self, arrived: int) -> int:
        """Digest of the positions that this pass must emit or drop, at its end."""


class PositionRefs:
    """A state holds 8 bytes a sample, and the source maps the views at these positions again."""

    kind = "as positions"

    def __init__(self, source: Any) -> None:
        self._source = source

    def hold(self, sample: Sample) -> BufferedSample:
        return buffered_sample(sample, sample.view.position)

    def join(self, refs: Iterable[int]) -> bytes:
        listed = list(refs)  # as pack_positions does, which takes twice as long from a list
        return struct.pack(f"<{len(listed)}q", *listed)

    def restore(self, refs: Any, what: str) -> list[BufferedSample]:
        positions = unpack_positions(refs, self._source.view.num_samples, what)
        views = self._source.views_at(positions)
        return [self.hold(sample) for sample in self._source.rebuild(views)] if views else []

    def any_sample(self) -> BufferedSample | None:
        for position in range(min(self._source.view.num_samples, _TRIED)):
            try:
                return self.restore(pack_positions(np.array([position])), "filler")[0]
            except StateError:
                continue
        return None

    def expected_digest(self, arrived: int) -> int:
        expected: int = self._source.view.cursor.share_digest()
        return expected


class ContentRefs:
    """A state holds the samples themselves: their source cannot map one again."""

    kind = "by content"

    def hold(self, sample: Sample) -> BufferedSample:
        return buffered_sample(sample, pack_sample(sample))

    def join(self, refs: Iterable[bytes]) -> list[bytes]:
        return list(refs)

    def restore(self, refs: Any, what: str) -> list[BufferedSample]:
        samples = [unpack_sample(blob) for blob in refs]
        try:
            return [self.hold(sample) for sample in samples]
        except Exception as error:  # content that no sample of ours has
            raise StateError(f"{what} is not of this data: {error!r:.200}") from error

    def any_sample(self) -> None:
        return None

    def expected_digest(self, arrived: int) -> int:
        return digest_range(0, arrived)


class Filler:
    """The shortest sample of a pass so far, to be masked in an IDLE step.

    Args:
        sample_refs: Of the samples.
        refs: Its reference in a state.
        length: Its tokens.
    """

    def __init__(self, sample_refs: SampleRefs, refs: Refs | None = None, length: int = 0) -> None:
        self._sample_refs = sample_refs
        self._held: BufferedSample | None = None
        self.refs, self.length = refs, length

    def consider(self, held: BufferedSample) -> None:
        """Take this one if it is shorter."""
        if self.refs is None or held.sample.length < self.length:
            self._held, self.length = held, held.sample.length
            self.refs = self._sample_refs.join([held.ref])

    def load(self) -> BufferedSample | None:
        """The sample behind ``refs``: mapped again only once it is asked for."""
        if self._held is None and self.refs is not None:
            self._held = self._sample_refs.restore(self.refs, "state 'filler'")[0]
        return self._held

    def sample(self) -> Sample:
        """The sample; on a rank that has seen none, any of the pass.

        Raises:
            SampleError: There is none.
        """
        self._held = self.load() or self._sample_refs.any_sample()
        if self._held is None:
            raise SampleError(
                "an idle step needs a sample to mask and this rank has seen none: give every rank "
                'data, or use idle="skip"'
            )
        return self._held.sample


def count_loss_tokens(data: Any, length: int) -> int:
    """Tokens of a sample that carry loss: labels other than -100, or all if it has no labels."""
    labels = data.get("labels") if isinstance(data, Mapping) else None
    if labels is None:
        return length
    if isinstance(labels, torch.Tensor):
        if labels.is_floating_point():  # NumPy lacks bfloat16
            return int((labels != IGNORE_INDEX).sum())
        labels = labels.numpy(force=True)  # a hundred times a batch: torch takes thrice as long
    return int(np.count_nonzero(np.asarray(labels) != IGNORE_INDEX))


def mask_labels(sample: Sample) -> Sample:
    """The sample with every label -100: it runs through the model and adds nothing to the loss."""
    if not isinstance(sample.data, Mapping) or "labels" not in sample.data:
        return sample
    labels = sample.data["labels"]
    if isinstance(labels, torch.Tensor):
        masked: Any = torch.full_like(labels, IGNORE_INDEX)
    elif isinstance(labels, np.ndarray):
        masked = np.full_like(labels, IGNORE_INDEX)
    else:
        masked = [IGNORE_INDEX] * len(labels)
    return sample._replace(data={**sample.data, "labels": masked})


def buffered_sample(sample: Sample, ref: Any) -> BufferedSample:
    """A sample with its reference, and its loss tokens counted once."""
    return BufferedSample(sample, ref, count_loss_tokens(sample.data, sample.length))

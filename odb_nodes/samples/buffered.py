"""Samples between arrival and delivery, and how a state refers to them: by position or content."""

import logging
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from odb_nodes.errors import SampleError, StateError
from odb_nodes.state.content import pack_sample, unpack_sample
from odb_nodes.state.cursor import NO_PACKED, Positions, unpack_positions
from odb_nodes.state.drops import DropLog
from odb_nodes.state.schema import Refs, WindowState
from odb_nodes.types import IGNORE_INDEX, Sample, View

logger = logging.getLogger(__name__)


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


@runtime_checkable
class RebuildingSource(Protocol):
    """A source that can map a sample again from its position, as ``SampleMapper`` does.

    Attributes:
        view: The share of the epoch that it maps, with ``num_samples`` and a ``cursor``.
        drops: Samples that it dropped in this pass.
    """

    view: Any
    drops: DropLog

    def views_at(self, positions: Positions) -> list[View]:
        """The views of the current pass at these positions."""

    def rebuild(self, views: Sequence[View]) -> list[Sample]:
        """Map these views again; the same samples as before."""


class SampleRefs(Protocol):
    """How a state refers to the samples of a source, and how they are found again from it."""

    kind: str

    def buffer(self, sample: Sample) -> BufferedSample:
        """The sample with its reference; all that can fail of making one fails here."""

    def join(self, refs: Iterable[Any]) -> Refs:
        """References of several samples as they stand in a state."""

    def restore(self, refs: Any, what: str) -> list[BufferedSample]:
        """The samples behind the references of a state, in order.

        Raises:
            StateError: The references are damaged.
        """


class PositionRefs:
    """A state holds 8 bytes per sample, and the source maps the views at these positions again."""

    kind = "as positions"

    def __init__(self, source: RebuildingSource) -> None:
        self._source = source

    def buffer(self, sample: Sample) -> BufferedSample:
        return _buffered(sample, sample.view.position)

    def join(self, refs: Iterable[int]) -> bytes:
        listed = list(refs)  # as pack_positions does, which takes twice as long from a list
        return struct.pack(f"<{len(listed)}q", *listed) or NO_PACKED

    def restore(self, refs: Any, what: str) -> list[BufferedSample]:
        positions = unpack_positions(refs, self._source.view.num_samples, what)
        views = self._source.views_at(positions)
        return [self.buffer(sample) for sample in self._source.rebuild(views)] if views else []


class ContentRefs:
    """A state holds the samples themselves: their source cannot map one again."""

    kind = "by content"

    def buffer(self, sample: Sample) -> BufferedSample:
        return _buffered(sample, pack_sample(sample))

    def join(self, refs: Iterable[bytes]) -> list[bytes]:
        return list(refs)

    def restore(self, refs: Any, what: str) -> list[BufferedSample]:
        if not isinstance(refs, list):
            raise StateError(f"{what} must be a list of packed samples")
        samples = [unpack_sample(blob) for blob in refs]
        try:
            return [_buffered(sample, blob) for sample, blob in zip(samples, refs, strict=True)]
        except Exception as error:  # whatever a sample of other data makes of our look at it
            raise StateError(f"{what} is not of this data: {error!r:.200}") from error


class Filler:
    """The shortest sample of a pass so far, to be masked in an IDLE step.

    A rank that has seen no sample borrows the filler of a peer.

    Args:
        sample_refs: How a state refers to samples.
        refs: Its reference in a state.
        length: Its tokens.
    """

    def __init__(self, sample_refs: SampleRefs, refs: Refs | None = None, length: int = 0) -> None:
        self._sample_refs = sample_refs
        self._sample: Sample | None = None
        self.refs, self.length = refs, length

    @property
    def missing(self) -> bool:
        """There is no sample to mask."""
        return self._sample is None and self.refs is None

    def consider(self, buffered: BufferedSample) -> None:
        """Take this one if it is shorter."""
        if self.refs is None or buffered.sample.length < self.length:
            self._sample, self.length = buffered.sample, buffered.sample.length
            self.refs = self._sample_refs.join([buffered.ref])

    def use(self, sample: Sample) -> None:
        """Take a sample that is not one of this pass: of the user, or borrowed from a peer."""
        self._sample = sample

    def sample(self) -> Sample:
        """The sample, mapped again only once it is asked for.

        Raises:
            SampleError: There is none.
        """
        if self._sample is None and self.refs is not None:
            self._sample = self._sample_refs.restore(self.refs, "state 'filler'")[0].sample
        if self._sample is None:
            raise SampleError(
                "an IDLE step needs a sample to mask, this rank has seen none, and no other rank "
                'could lend one: pass filler= a sample of your data, or use idle="skip"'
            )
        return self._sample

    def borrow(self, share: Callable[[bytes | None], bytes | None]) -> None:
        """Lend this filler to ranks that have none, or take that of one that has.

        Args:
            share: Gives all ranks the packed filler of one of them; a collective.
        """
        found = share(self._pack())
        if self.missing and found is not None:
            self.use(unpack_sample(found))

    def _pack(self) -> bytes | None:
        """The sample for another rank; None where there is none, or it cannot be packed."""
        if self.missing:
            return None
        try:
            return pack_sample(self.sample())
        except Exception as error:
            logger.debug("this rank cannot lend its filler: %r", error)
            return None


def check_sums(state: WindowState, tokens: int, loss_tokens: int) -> None:
    """Check samples that were found again against the sums that their state has of them.

    Raises:
        StateError: They are others.
    """
    for name, saved, here in (
        ("tokens", state["held_tokens"], tokens),
        ("loss tokens", state["held_loss_tokens"], loss_tokens),
    ):
        if saved not in (None, here):
            raise StateError(
                f"the samples of the state's window had {saved} {name}, they have {here} now: "
                "they must be of the same dataset, and the transform must be deterministic"
            )


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


def _buffered(sample: Sample, ref: Any) -> BufferedSample:
    return BufferedSample(sample, ref, count_loss_tokens(sample.data, sample.length))

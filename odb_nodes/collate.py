"""Samples of one group to tensors: padded rows, or packed into one row."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from odb_nodes.arguments import choice, integer
from odb_nodes.batching.budget import Rounding
from odb_nodes.errors import SampleError
from odb_nodes.types import IGNORE_INDEX

DEFAULT_PAD: Mapping[str, int | float] = {
    "input_ids": 0,
    "labels": IGNORE_INDEX,
    "attention_mask": 0,
    "token_type_ids": 0,
}


class PadCollate:
    """Collates a list of sample mappings into tensors.

    Keys with a padding value hold one value per token (lists, arrays or 1-D tensors, all of one
    length in a sample) and are padded on the right; such a key that no sample has is left out. All
    other keys are passed on as lists in sample order, unless they look like values per token.

    An IDLE step comes as a list of one sample whose labels are all -100, and is collated like any
    other: a collate of one's own needs no special case for it.

    Args:
        pad: Padding value by key, besides those of ``DEFAULT_PAD`` (input_ids, labels,
            attention_mask, token_type_ids). Integers become int64 tensors, floats keep their own
            dtype. None passes a key on as a list.
        pad_to_multiple_of: Rows are padded to a multiple of this many tokens, or to the lengths
            that a ``Rounding`` allows.
        layout: "padded" gives ``[B, L]``, L the longest sample rounded up; "packed" gives
            ``[1, sum of lengths]`` rounded up, for document masks. Packed batches always hold
            "positions".
        positions: Also give "positions": token numbers within each sample, restarting at 0 once
            where the padding begins, so that a mask by document sees padding as one more document.
    Raises:
        ValueError: An argument out of range.
        SampleError: From a call: a sample lacks a key that others have, its lengths differ, or a
            key with a value per token has no padding value.
    """

    def __init__(
        self,
        pad: Mapping[str, int | float | None] | None = None,
        *,
        pad_to_multiple_of: int | Rounding = 1,
        layout: Literal["padded", "packed"] = "padded",
        positions: bool = False,
    ) -> None:
        if not isinstance(pad_to_multiple_of, Rounding):
            multiple = integer("pad_to_multiple_of", pad_to_multiple_of, least=1)
            pad_to_multiple_of = Rounding(multiple=multiple)
        choice("layout", layout, ("padded", "packed"))
        self.pad = padding_values(pad)
        self._fill = {key: value for key, value in self.pad.items() if value is not None}
        self._round_up = pad_to_multiple_of.up
        self.layout = layout
        self.positions = positions or layout == "packed"

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate; keys of the result are the keys of the samples, and "positions" if asked."""
        columns, others, lengths = read_columns(samples, self.pad)
        batch: dict[str, Any] = {
            key: self._join(rows, lengths, self._fill[key]) for key, rows in columns.items()
        }
        batch |= others
        if self.positions:
            batch["positions"] = self._positions(lengths)
        return batch

    def _join(
        self, rows: list[npt.NDArray[Any]], lengths: list[int], value: int | float
    ) -> torch.Tensor:
        dtype = np.int64 if isinstance(value, int) else rows[0].dtype
        if self.layout == "packed":
            out = np.full((1, self._round_up(sum(lengths))), value, dtype)
            np.concatenate(rows, out=out[0, : sum(lengths)], casting="unsafe")
            return torch.from_numpy(out)
        out = np.full((len(rows), self._round_up(max(lengths))), value, dtype)
        for line, row in zip(out, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(out)

    def _positions(self, lengths: list[int]) -> torch.Tensor:
        if self.layout == "packed":
            size = self._round_up(sum(lengths))
            runs = [*lengths, size - sum(lengths)]
            return torch.from_numpy(np.concatenate([np.arange(n) for n in runs])[None])
        out = np.tile(np.arange(self._round_up(max(lengths))), (len(lengths), 1))
        for line, length in zip(out, lengths, strict=True):
            line[length:] -= length
        return torch.from_numpy(out)


def padding_values(
    pad: Mapping[str, int | float | None] | None,
) -> dict[str, int | float | None]:
    """The padding values of a collate: the defaults, and over them its own.

    Raises:
        ValueError: A value is not a number or None.
    """
    values = {**DEFAULT_PAD, **(pad or {})}
    for key, value in values.items():
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"pad[{key!r}] must be a number or None, got {value!r}")
    return values


def read_columns(
    samples: Sequence[Mapping[str, Any]], pad: Mapping[str, int | float | None]
) -> tuple[dict[str, list[npt.NDArray[Any]]], dict[str, list[Any]], list[int]]:
    """The values of samples by key.

    Args:
        samples: At least one.
        pad: Its keys are those with a value per token, but for those with None.
    Returns:
        The arrays of the keys in ``pad``, the values of all others, and the samples' lengths.
    Raises:
        SampleError: A sample lacks a key that others have, its lengths differ, or a key with a
            value per token is not in ``pad``.
    """
    keys = list(samples[0])
    columns = {
        key: [_row(sample, key, keys) for sample in samples]
        for key, value in pad.items()
        if value is not None and key in samples[0]
    }
    others = {
        key: [_value(sample, key, keys) for sample in samples] for key in keys if key not in columns
    }
    lengths = _lengths(columns, pad)
    for key, values in others.items():
        if key not in pad and _is_per_token(values, lengths):
            raise SampleError(
                f"{key!r} has one value per token and no padding value: pass pad={{{key!r}: 0}} to "
                f"pad it, or pad={{{key!r}: None}} to have it as a list"
            )
    return columns, others, lengths


def _is_per_token(values: Sequence[Any], lengths: Sequence[int]) -> bool:
    """Whether these are numbers, as many as tokens in every one of several different samples."""
    if len(set(lengths)) < 2:  # one length may be a coincidence
        return False
    for value, length in zip(values, lengths, strict=True):
        if not isinstance(value, list | tuple | np.ndarray | torch.Tensor) or len(value) != length:
            return False
    first = values[0]
    kind = np.asarray(first if not isinstance(first, torch.Tensor) else first.numpy(force=True))
    return kind.ndim == 1 and kind.dtype.kind in "biuf"


def _lengths(columns: dict[str, list[npt.NDArray[Any]]], pad: Mapping[str, Any]) -> list[int]:
    if not columns:
        raise SampleError(f"no key to pad: a sample needs one of {sorted(pad)}")
    lengths = {key: [len(row) for row in rows] for key, rows in columns.items()}
    first_key, first = next(iter(lengths.items()))
    for key, others in lengths.items():
        if others != first:
            raise SampleError(
                f"{key!r} and {first_key!r} of a sample differ in length: {others} and {first}"
            )
    return first


def _value(sample: Mapping[str, Any], key: str, keys: list[str]) -> Any:
    try:
        return sample[key]
    except KeyError:
        raise SampleError(
            f"a sample has keys {sorted(sample)}, others have {sorted(keys)}"
        ) from None


def _row(sample: Mapping[str, Any], key: str, keys: list[str]) -> npt.NDArray[Any]:
    value = _value(sample, key, keys)
    row = value.numpy(force=True) if isinstance(value, torch.Tensor) else np.asarray(value)
    if row.ndim != 1:
        raise SampleError(f"{key!r} must have one value per token, got shape {row.shape}")
    return row

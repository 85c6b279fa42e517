"""Samples of one group to packed rows, in the forms that attention over documents takes."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from odb_nodes.batching.budget import Rounding, TokenBudget
from odb_nodes.batching.layout import Layout
from odb_nodes.batching.packed import Packed
from odb_nodes.collate import PadCollate, padding_values, read_columns
from odb_nodes.errors import SampleError
from odb_nodes.types import IGNORE_INDEX

Form = Literal["cu_seqlens", "transformers", "position_ids"]
Shape = Literal["fixed", "dynamic"]


class PackCollate:
    """Collates a list of sample mappings into rows of whole documents, one after the other.

    Two samples of 3 and 2 tokens and ``row_tokens=8, shape="fixed"``::

        input_ids     [[5, 6, 7, 8, 9, 0, 0, 0]]       int64 [rows, row tokens]
        labels        [[5, 6, 7, 8, 9, -100, -100, -100]]
        position_ids  [[0, 1, 2, 0, 1, 0, 1, 2]]       they restart in every document
        cu_seqlens    [0, 3, 5, 8]                     int32, over all rows laid end to end
        max_seqlen    8

    Padding is a document of its own (here the last 3 tokens), so that nothing attends to it. Keys
    that are not in ``pad`` are passed on as lists in sample order.

    Args:
        row_tokens: Tokens of a row; None puts all samples into one row.
        rows: Most rows. A row closes at the first sample that does not fit, as groups of
            ``Packed(rows=...)`` list their samples row by row.
        shape: "fixed" gives ``[rows, row_tokens]`` always; "dynamic" as many rows as there are, as
            long as the longest.
        pad: Padding value by key, as for ``PadCollate``.
        pad_to_multiple_of: Dynamic rows are as long as a multiple of this many tokens, or as a
            ``Rounding`` allows.
        pad_documents_to: Each document is padded to a multiple of this many tokens, or as a
            ``Rounding`` says, for kernels that need it (``TokenBudget.rounding`` counts it in).
        longest_padding: Padding that is longer becomes several documents, for models that check
            positions or pay for long documents.
        max_documents: ``cu_seqlens`` has one entry more than this, always: empty documents follow
            the last. Padding counts, too: with ``TokenBudget(max_samples=n)``, ``n + rows`` do.
        form: "cu_seqlens" as above; "transformers" with the keys of a padding-free Hugging Face
            model, ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q`` and ``max_length_k``;
            "position_ids" without any of these. The last two put -100 at each document's first
            label, as those models shift labels themselves, also across documents.
    Raises:
        ValueError: An argument out of range.
        SampleError: From a call: samples that do not fit, or do not match.
    """

    def __init__(
        self,
        row_tokens: int | None = None,
        *,
        rows: int = 1,
        shape: Shape = "dynamic",
        pad: Mapping[str, int | float | None] | None = None,
        pad_to_multiple_of: int | Rounding = 1,
        pad_documents_to: int | Rounding = 1,
        longest_padding: int | None = None,
        max_documents: int | None = None,
        form: Form = "cu_seqlens",
    ) -> None:
        numbers = {
            "row_tokens": row_tokens,
            "rows": rows,
            "longest_padding": longest_padding,
            "max_documents": max_documents,
        }
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, given, known in (("shape", shape, Shape), ("form", form, Form)):
            if given not in get_args(known):
                raise ValueError(f"{name} must be one of {list(get_args(known))}, got {given!r}")
        if row_tokens is None and (shape == "fixed" or rows > 1):
            raise ValueError("row_tokens is needed for a fixed shape and for several rows")
        if max_documents is not None and form == "position_ids":
            raise ValueError("max_documents pads cumulative lengths, which this form does not have")
        self.row_tokens, self.rows, self.shape, self.form = row_tokens, rows, shape, form
        self.pad = padding_values(pad)
        self._fill = {key: value for key, value in self.pad.items() if value is not None}
        self.max_documents = max_documents
        self._row = _rounding(pad_to_multiple_of)
        self.pad_documents_to = _rounding(pad_documents_to)
        self._longest_padding = longest_padding

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate; see the class for the keys of the result."""
        columns, others, lengths = read_columns(samples, self.pad)
        rows = self._split([self.pad_documents_to.up(length) for length in lengths])
        size = self._row_size(rows)
        starts = [
            size * at + start
            for at, row in enumerate(rows)
            for start in accumulate(row[:-1], initial=0)
        ]
        num_rows = self.rows if self.shape == "fixed" else len(rows)
        batch: dict[str, Any] = {
            key: _lay(values, starts, size, num_rows, self._fill[key])
            for key, values in columns.items()
        }
        if self.form != "cu_seqlens" and "labels" in batch:
            batch["labels"].view(-1)[starts] = IGNORE_INDEX
        rows += [[] for _ in range(num_rows - len(rows))]
        documents = [length for row in rows for length in self._filled(row, size)]
        batch["position_ids"] = torch.from_numpy(_positions(documents).reshape(num_rows, size))
        return batch | self._cumulative(documents, size) | others

    def _split(self, lengths: Sequence[int]) -> list[list[int]]:
        """Documents by row; a row closes at the first that does not fit."""
        rows: list[list[int]] = []
        used = 0
        for length in lengths:
            if rows and (self.row_tokens is None or used + length <= self.row_tokens):
                rows[-1].append(length)
                used += length
            else:
                rows.append([length])
                used = length
        if len(rows) > self.rows:
            raise SampleError(
                f"samples of {sum(lengths)} tokens need {len(rows)} rows of {self.row_tokens} "
                f"tokens, rows is {self.rows}: group them by Packed(rows={self.rows}) and a token "
                "budget of rows * row_tokens"
            )
        return rows

    def _row_size(self, rows: list[list[int]]) -> int:
        longest = max(map(sum, rows))
        if self.shape == "dynamic":
            return self._row.up(longest)
        assert self.row_tokens is not None
        if longest > self.row_tokens:
            raise SampleError(
                f"a sample of {longest} tokens is longer than a row of fixed shape, "
                f"{self.row_tokens} tokens: raise row_tokens, drop such samples "
                '(overlong="drop"), or use shape="dynamic"'
            )
        return self.row_tokens

    def _filled(self, row: list[int], size: int) -> list[int]:
        """The documents of a row, those of padding included."""
        left = size - sum(row)
        most = self._longest_padding or max(1, left)
        return [*row, *([most] * (left // most)), *([left % most] if left % most else [])]

    def _cumulative(self, documents: list[int], size: int) -> dict[str, Any]:
        if self.form == "position_ids":
            return {}
        ends = [0, *accumulate(documents)]
        if self.max_documents is not None:
            if len(documents) > self.max_documents:
                raise SampleError(
                    f"a step may have at most {self.max_documents} documents (max_documents), "
                    f"got {len(documents)}: raise it, or limit samples by "
                    "TokenBudget(max_samples=max_documents - rows)"
                )
            ends += [ends[-1]] * (self.max_documents - len(documents))
        offsets = torch.tensor(ends, dtype=torch.int32)
        longest = size if self.shape == "fixed" else max(documents)
        if self.form == "cu_seqlens":
            return {"cu_seqlens": offsets, "max_seqlen": longest}
        return {
            "cu_seq_lens_q": offsets,
            "cu_seq_lens_k": offsets,
            "max_length_q": longest,
            "max_length_k": longest,
        }


def collate_for(
    layout: Layout, budget: TokenBudget, shape: Shape | None
) -> PadCollate | PackCollate:
    """The collate that goes with a layout.

    Args:
        layout: Of the groups.
        budget: Of a group.
        shape: Of packed steps; None is "dynamic".
    Raises:
        ValueError: A shape for groups that are not packed.
    """
    rounding = budget.rounding or Rounding()
    if isinstance(layout, Packed):
        return PackCollate(
            layout.longest(budget),
            rows=layout.rows,
            shape=shape or "dynamic",
            pad_documents_to=rounding,
        )
    if shape is not None:
        raise ValueError(f'shape is of packed steps, got {shape!r}: use layout="packed"')
    return PadCollate(pad_to_multiple_of=rounding)


def _rounding(multiple: int | Rounding) -> Rounding:
    return Rounding(multiple=multiple) if isinstance(multiple, int) else multiple


def _lay(
    values: list[npt.NDArray[Any]], starts: list[int], size: int, rows: int, pad: int | float
) -> torch.Tensor:
    """Values at their places in rows of ``size`` tokens, laid end to end."""
    out = np.full(rows * size, pad, np.int64 if isinstance(pad, int) else values[0].dtype)
    for start, value in zip(starts, values, strict=True):
        out[start : start + len(value)] = value
    return torch.from_numpy(out.reshape(rows, size))


def _positions(documents: list[int]) -> npt.NDArray[np.int64]:
    """0, 1, 2, ... in each document."""
    starts = np.repeat(np.cumsum([0, *documents[:-1]]), documents)
    positions: npt.NDArray[np.int64] = np.arange(sum(documents)) - starts
    return positions

"""Rows that were tokenized before: ``input_ids`` and, if only some carry loss, ``labels``."""

from collections.abc import Sequence
from typing import Any

from titan_integration.data.formats.document import Document, Reading, RowError
from titan_integration.data.formats.fields import Fields

IGNORE_INDEX = -100


def fits(fields: Fields) -> bool:
    """Whether there are ``input_ids``."""
    return fields.has("input_ids", list)


def read(fields: Fields, reading: Reading) -> Document:
    """Ids and labels without padding, labels in the place of their token as everywhere in HF.

    Raises:
        RowError: They are no lists of equally many integers, or a label is neither its token's
            id nor -100.
    """
    ids = _integers(fields, "input_ids")
    labels = _integers(fields, "labels") if fields.has("labels") else ids
    mask = _integers(fields, "attention_mask") if fields.has("attention_mask") else [1] * len(ids)
    if not len(ids) == len(labels) == len(mask):
        raise RowError("'input_ids', 'labels' and 'attention_mask' differ in length")
    kept = [i for i, real in enumerate(mask) if real]
    if any(labels[i] not in (IGNORE_INDEX, ids[i]) for i in kept):
        raise RowError("a label is neither its token's id nor -100")
    if not any(labels[i] != IGNORE_INDEX for i in kept[1:]):
        raise RowError("no label")
    return Document(tokens=([ids[i] for i in kept], [labels[i] for i in kept]))


def _integers(fields: Fields, name: str) -> Sequence[int]:
    value: Any = fields.get(name)
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise RowError(f"{name!r} is no list of integers")
    return value

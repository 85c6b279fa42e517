"""Rows with an ``instruction``: Alpaca and its many relatives, Dolly, Self-Instruct."""

from dataclasses import replace
from typing import Any

from titan_integration.data.formats.document import Document, Reading, RowError
from titan_integration.data.formats.fields import Fields
from titan_integration.data.formats.turns import SYSTEM_COLUMNS, conversation

INPUTS = ("input", "inputs", "context")
OUTPUTS = ("output", "response", "answer", "completion", "target", "outputs")


def fits(fields: Fields) -> bool:
    """Whether there is an instruction and an answer to it."""
    return fields.has("instruction", str) and (
        fields.has("instances", list) or fields.first(OUTPUTS) is not None
    )


def read(fields: Fields, reading: Reading) -> Document:
    """``history``, then instruction, blank line and input; and the output.

    Self-Instruct keeps input and output in ``instances``, of which the first one is taken.
    """
    instruction = fields.text("instruction")
    if instruction is None:
        raise RowError("no 'instruction'")
    source, unread = _source(fields)
    given = source.text(*INPUTS)
    turns: list[Any] = [
        {"role": role, "content": text}
        for pair in _history(fields)
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    turns.append({"role": "user", "content": f"{instruction}\n\n{given}" if given else instruction})
    turns.append({"role": "assistant", "content": source.text(*OUTPUTS)})
    document = conversation(turns, reading, system=fields.text(*SYSTEM_COLUMNS))
    return replace(document, unread=document.unread | unread)


def _source(fields: Fields) -> tuple[Fields, frozenset[str]]:
    """Where input and output are, and what of it is left out."""
    instances = fields.get("instances")
    if not isinstance(instances, list) or not instances:
        return fields, frozenset()
    if not isinstance(instances[0], dict):
        raise RowError("'instances' holds no objects")
    more = frozenset({"instances after the first"}) if len(instances) > 1 else frozenset[str]()
    return Fields(instances[0]), more


def _history(fields: Fields) -> list[list[str]]:
    history = fields.get("history") or []
    if not isinstance(history, list):
        raise RowError("'history' is no list of question and answer")
    for pair in history:
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowError("'history' is no list of question and answer")
    return history

"""Rows that tell good answers from bad ones: ``chosen`` and ``rejected``, or a ``label``."""

from dataclasses import replace
from typing import Any

from titan_integration.data.formats import messages, pairs, sharegpt
from titan_integration.data.formats.document import Document, Reading, Refused, RowError
from titan_integration.data.formats.fields import Fields

LABELS = ("label", "kto_tag")
CHOICE = "train on the good answers only by --data.preference chosen"


def fits(fields: Fields) -> bool:
    """Whether an answer is chosen before another, or labelled as good or bad."""
    return (fields.has("chosen") and fields.has("rejected")) or _label(fields) is not None


def read(fields: Fields, reading: Reading) -> Document:
    """The chosen answer, or one labelled true.

    Raises:
        Refused: The run does not say to train on such answers.
        RowError: The answer is labelled as a bad one.
    """
    label = _label(fields)
    if reading.preference != "chosen":
        what = "chosen and rejected answers" if label is None else "answers labelled good or bad"
        raise Refused(f"the row has {what}; {CHOICE}")
    if label is not None:
        return _labelled(fields, reading)
    if not fields.has("chosen"):
        raise RowError("no 'chosen'")
    fields.get("rejected")
    return _chosen(fields, reading)


def _labelled(fields: Fields, reading: Reading) -> Document:
    name = _label(fields)
    if name is not None and not fields.get(name):
        raise RowError("labelled as a bad answer")
    if messages.fits(fields):
        return messages.read(fields, reading)
    if sharegpt.fits(fields):
        return sharegpt.read(fields, reading)
    return pairs.read(fields, reading)


def _chosen(fields: Fields, reading: Reading) -> Document:
    """``chosen`` may be the answer's text, its messages, or the whole conversation."""
    prompt = fields.first(pairs.PROMPTS)
    if fields.has("chosen", str):
        if prompt is None and not fields.has("conversations"):
            raise RowError("'chosen' is text without a prompt")
        turns: list[Any] = [{"role": "assistant", "content": fields.text("chosen")}]
    else:
        value = fields.get("chosen")
        turns = value if isinstance(value, list) else [value]
    if fields.has("conversations", list):
        history = sharegpt.read(fields, reading)
        answer = pairs.joined(fields, None, turns, reading)
        return _after(history, answer)
    whole = bool(turns) and isinstance(turns[0], dict) and _is_prompt(turns[0])
    if whole and prompt is not None:
        fields.get(prompt)
        prompt = None
    return pairs.joined(fields, prompt, turns, reading)


def _is_prompt(turn: dict[str, Any]) -> bool:
    return turn.get("role", turn.get("from")) in ("user", "human", "system")


def _after(history: Document, answer: Document) -> Document:
    return replace(
        history,
        messages=history.messages + answer.messages,
        pictures=history.pictures + answer.pictures,
        untrained=frozenset(history.answers),
        unread=history.unread | answer.unread,
    )


def _label(fields: Fields) -> str | None:
    return next((name for name in LABELS if fields.has(name, bool)), None)

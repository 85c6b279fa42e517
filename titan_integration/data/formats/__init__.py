"""Reading one row of a chat, instruction, preference or text file: one module for each format.

A format is a pair of functions, ``fits(fields) -> bool`` and ``read(fields, reading) -> Document``,
and a line in :data:`FORMATS`. Pure Python; may import ``titan_integration.data.pictures``, for the
places of pictures, and ``titan_integration.errors``.
"""

from dataclasses import replace
from types import ModuleType
from typing import Any

from titan_integration.data.formats import (
    alpaca,
    messages,
    pairs,
    preference,
    sharegpt,
    text,
    tokens,
)
from titan_integration.data.formats.document import BadPicture, Document, Reading, RowError
from titan_integration.data.formats.fields import Fields
from titan_integration.data.formats.parts import refuse_media
from titan_integration.data.pictures import places
from titan_integration.data.pictures.problem import PictureProblem

# In the order in which a row is asked; the first that fits reads it.
FORMATS: dict[str, ModuleType] = {
    "tokens": tokens,
    "preference": preference,
    "messages": messages,
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "prompt_response": pairs,
    "text": text,
}
NAMES = ("auto", *FORMATS)
PICTURE_COLUMNS = ("images", "image")
MEDIA_COLUMNS = ("video", "videos", "audio", "audios")


def to_document(row: Any, reading: Reading | None = None) -> Document:
    """Read one row, up to its last answer.

    Args:
        row: The parsed value: an object, a bare list of messages, or a text.
        reading: How; by default every row by its keys.

    Raises:
        RowError: The row has not the format's keys, or nothing to train on.
        Refused: It has films or sounds, or pictures that the model does not take or that are not as
            they must be, or it needs a decision.
    """
    reading = reading or Reading()
    fields = _fields(row, reading)
    for name in MEDIA_COLUMNS if reading.pictures else (*MEDIA_COLUMNS, *PICTURE_COLUMNS):
        if fields.has(name) and fields.get(name):
            raise refuse_media(name, pictures=reading.pictures)
    name = _detect(fields) if reading.form == "auto" else reading.form
    if name != "preference" and preference.fits(fields):
        name = "preference"  # Also where a format is named: bad answers are no good ones there.
    document: Document = FORMATS[name].read(fields, reading)
    if reading.pictures:
        document = _with_pictures(document, fields, in_front=name == "prompt_response")
    elif document.pictures:
        raise refuse_media("images")
    document = replace(document, unread=document.unread | fields.unread())
    return document if document.text is not None or document.tokens else _answered(document)


def detect(row: Any, reading: Reading | None = None) -> str:
    """The format a row's keys speak for. Raises RowError where they speak for none."""
    return _detect(_fields(row, reading or Reading()))


def _with_pictures(document: Document, fields: Fields, *, in_front: bool) -> Document:
    """The document with a picture for each place.

    ``in_front``: those of a row that has no places stand before its first question.
    """
    name = fields.first(PICTURE_COLUMNS)
    column = [] if name is None else places.listed(fields.get(name))
    if column and document.text is not None:
        document = replace(document, text=None, messages=places.captioned(document.text))
        in_front = True
    if column and in_front and not document.pictures:
        messages = places.in_front(document.messages, len(column))
        document = replace(document, messages=messages, pictures=(None,) * len(column))
    try:
        pictures = places.filled(document.pictures, column, document.messages)
    except PictureProblem as problem:
        raise BadPicture(problem.reason, str(problem)) from problem
    return replace(document, messages=places.with_numbers(document.messages), pictures=pictures)


def _fields(row: Any, reading: Reading) -> Fields:
    if isinstance(row, list):
        return Fields({"messages": row})
    if isinstance(row, str):
        return Fields({"text": row})
    if not isinstance(row, dict):
        raise RowError("neither an object nor a list of messages")
    return Fields(row, reading.columns)


def _detect(fields: Fields) -> str:
    name = next((name for name, form in FORMATS.items() if form.fits(fields)), None)
    if name is None:
        raise RowError("no known keys; name them by --data.columns, as in prompt=my_column")
    return name


def _answered(document: Document) -> Document:
    """Cut what follows the last answer that is trained on: it carries no loss."""
    if not any(_says_something(document.messages[i]) for i in document.answers):
        raise RowError("no answer")
    trained = [i for i in document.answers if i not in document.untrained]
    if not trained:
        raise RowError("the row says to train on none of its answers")
    return replace(document, messages=document.messages[: trained[-1] + 1])


def _says_something(message: dict[str, Any]) -> bool:
    said = message["content"].strip(), message.get("tool_calls"), message.get("reasoning_content")
    return any(said)

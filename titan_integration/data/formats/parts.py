"""A message's content, which may be text, nothing, or a list of typed parts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from titan_integration.data.formats.calls import read_calls
from titan_integration.data.formats.document import BadPicture, Refused, RowError
from titan_integration.data.pictures.marks import MARK, count, marked

TEXT = ("text", "input_text", "output_text")
REASONING = ("reasoning", "thinking", "reasoning_content")
CALLS = ("tool_call", "tool_use", "function_call")
PICTURES = ("image", "input_image")
REFERENCES = {"image", "image_url", "url", "path", "bytes", "value"}
MEDIA = ("video", "audio", "input_audio")


@dataclass(kw_only=True, slots=True)
class Content:
    """What the parts of one content say.

    ``pictures`` are what it calls its pictures, None for the next one of the row's column, and
    ``text`` has a mark in the place of each.
    """

    text: str = ""
    pictures: list[Any] = field(default_factory=list)
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)


def read_content(value: Any) -> Content:
    """Read a content: null is empty, texts are joined, reasoning and tool calls kept apart.

    Raises:
        Refused: A part is a film or a sound.
        RowError: A part is of an unknown type.
    """
    if value is None:
        return Content()
    if isinstance(value, str):
        _add_text(content := Content(), value)
        return content
    if isinstance(value, dict) and "type" in value:
        value = [value]
    if not isinstance(value, list):
        return Content(text=json.dumps(value, ensure_ascii=False))
    content = Content()
    for part in value:
        _add(content, part)
    return content


def refuse_media(kind: str, *, pictures: bool = False) -> Refused:
    """The error for rows with films and sounds, and, where the model has no tower, pictures.

    They are never trained on as text.
    """
    takes = "takes texts and pictures" if pictures else "and its data are text only"
    return Refused(
        f"the row has {kind}",
        f"the row has {kind}, and this model {takes}; take the rows with {kind} out, or leave them "
        "out by --data.odb.on_error skip",
    )


def with_placeholders(content: Content) -> None:
    """Let placeholders in the text be the places of its pictures.

    Where parts are pictures, and the text has as many placeholders, those say where they belong.

    Raises:
        BadPicture: There are both, and not equally many.
    """
    places = count(content.text)
    if not places:
        return
    if content.pictures:
        if places != len(content.pictures):
            raise BadPicture(
                "placeholder text beside pictures",
                f"a message has {len(content.pictures)} pictures, and {places} placeholders "
                "(as <image>) in its words; leave the placeholders out",
            )
        content.text = content.text.replace(MARK, "")
    else:
        content.pictures = [None] * places
    content.text = marked(content.text)


def _add(content: Content, part: Any) -> None:
    if isinstance(part, str):
        _add_text(content, part)
        return
    if not isinstance(part, dict):
        raise RowError("a content part is not text")
    kind = part.get("type")
    if kind is None and isinstance(part.get("text"), str):
        kind = "text"
    if not isinstance(kind, str):
        raise RowError("a content part has no type")
    if kind.startswith(MEDIA):
        raise refuse_media(_media_name(kind))
    if kind.startswith(PICTURES):
        content.text += MARK
        content.pictures.append(_reference(part))
    elif kind in TEXT:
        _add_text(content, _value(part, "text"))
    elif kind in REASONING:
        content.reasoning += _value(part, kind, "reasoning", "thinking", "text")
    elif kind in CALLS:
        content.calls += read_calls(part.get("value", part.get(kind, part)))
    else:
        raise RowError(f"a content part of type {kind!r} is not text")


def _add_text(content: Content, text: str) -> None:
    if MARK in text:
        raise RowError("a text holds U+FDD2, which is no character")
    content.text += text


def _reference(part: Mapping[str, Any]) -> Any:
    """The part itself, if it says which picture it is; else None."""
    said = {key: value for key, value in part.items() if key != "type" and value is not None}
    return said if said.keys() & REFERENCES else None


def _value(part: Mapping[str, Any], *names: str) -> str:
    for name in (*names, "value", "content"):
        if isinstance(part.get(name), str):
            return str(part[name])
    raise RowError(f"a content part of type {part.get('type')!r} holds no text")


def _media_name(kind: str) -> str:
    return next(f"{name}s" for name in ("video", "audio") if name in kind)

"""A message's content, which may be text, nothing, or a list of typed parts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from titan_integration.data.formats.calls import read_calls
from titan_integration.data.formats.document import Refused, RowError

TEXT = ("text", "input_text", "output_text")
REASONING = ("reasoning", "thinking", "reasoning_content")
CALLS = ("tool_call", "tool_use", "function_call")
MEDIA = ("image", "video", "audio", "input_image", "input_audio")
# What stands for a picture in the texts of the usual picture datasets.
PLACEHOLDERS = ("<image>", "<IMG_CONTEXT>")


@dataclass(kw_only=True, slots=True)
class Content:
    """What the parts of one content say."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)


def read_content(value: Any) -> Content:
    """Read a content: null is empty, texts are joined, reasoning and tool calls kept apart.

    Raises:
        Refused: A part is a picture, a film or a sound.
        RowError: A part is of an unknown type.
    """
    if value is None:
        return Content()
    if isinstance(value, str):
        return Content(text=value)
    if isinstance(value, dict) and "type" in value:
        value = [value]
    if not isinstance(value, list):
        return Content(text=json.dumps(value, ensure_ascii=False))
    content = Content()
    for part in value:
        _add(content, part)
    return content


def refuse_media(kind: str) -> Refused:
    """The error for rows with pictures, which are never trained on as text."""
    return Refused(
        f"the row has {kind}, and this model and its data are text only; take the rows with "
        f"{kind} out, or leave them out by --data.odb.on_error skip"
    )


def _add(content: Content, part: Any) -> None:
    if isinstance(part, str):
        content.text += part
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
    if kind in TEXT:
        content.text += _value(part, "text")
    elif kind in REASONING:
        content.reasoning += _value(part, kind, "reasoning", "thinking", "text")
    elif kind in CALLS:
        content.calls += read_calls(part.get("value", part.get(kind, part)))
    else:
        raise RowError(f"a content part of type {kind!r} is not text")


def _value(part: Mapping[str, Any], *names: str) -> str:
    for name in (*names, "value", "content"):
        if isinstance(part.get(name), str):
            return str(part[name])
    raise RowError(f"a content part of type {part.get('type')!r} holds no text")


def _media_name(kind: str) -> str:
    return next(f"{name}s" for name in ("image", "video", "audio") if name in kind)

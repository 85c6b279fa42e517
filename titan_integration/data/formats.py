"""One row of a chat, instruction or text file, read as messages or as plain text."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Format = Literal["auto", "messages", "alpaca", "sharegpt", "prompt_response", "text"]
Message = dict[str, Any]

SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "system": "system",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "tool_response": "tool",
}
PROMPT_KEYS = ("prompt", "question", "query", "input", "instruction")
RESPONSE_KEYS = ("response", "completion", "answer", "output")


class RowError(ValueError):
    """A row that cannot be trained on; ``reason`` is short and without content, for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A row in the one form the encoder takes: a conversation, or plain text.

    Attributes:
        messages: ``role``/``content`` mappings, contents as strings; empty for plain text.
        text: Plain text, all of it trained on; None for a conversation.
        tools: Tool descriptions, handed to the chat template.
    """

    messages: list[Message] = field(default_factory=list)
    text: str | None = None
    tools: list[Any] | None = None


def to_document(row: Any, form: Format = "auto") -> Document:
    """Read one row.

    Args:
        row: The parsed JSON value: a mapping, or a bare list of messages.
        form: Which reading applies; "auto" decides for every row by its keys.

    Raises:
        RowError: The row has not the form's keys, or nothing to train on.
    """
    if form == "auto":
        form = detect(row)
    document = READERS[form](row)
    if document.text is None:
        document = _answered(document)
    elif not document.text.strip():
        raise RowError("empty text")
    return document


def detect(row: Any) -> Format:
    """The format a row's keys speak for. Raises RowError where they speak for none."""
    if isinstance(row, list):
        return "messages"
    if not isinstance(row, Mapping):
        raise RowError("neither an object nor a list of messages")
    if isinstance(row.get("messages"), list):
        return "messages"
    if isinstance(row.get("conversations"), list):
        return "sharegpt"
    if "instruction" in row and ("instances" in row or _first(row, RESPONSE_KEYS) is not None):
        return "alpaca"
    if _first(row, PROMPT_KEYS) is not None and _first(row, RESPONSE_KEYS) is not None:
        return "prompt_response"
    if isinstance(row.get("text"), str):
        return "text"
    raise RowError("no known keys")


def _messages(row: Any) -> Document:
    messages = row if isinstance(row, list) else _get(row, "messages", list)
    return Document(
        messages=[_message(m, m.get("role") if isinstance(m, Mapping) else None) for m in messages],
        tools=_tools(row),
    )


def _sharegpt(row: Any) -> Document:
    messages = []
    if isinstance(row, Mapping) and isinstance(row.get("system"), str) and row["system"]:
        messages.append({"role": "system", "content": row["system"]})
    for turn in _get(row, "conversations", list):
        if not isinstance(turn, Mapping):
            raise RowError("a turn is not an object")
        role = SHAREGPT_ROLES.get(str(turn.get("from", turn.get("role"))))
        messages.append(_message({"content": turn.get("value", turn.get("content"))}, role))
    return Document(messages=messages, tools=_tools(row))


def _alpaca(row: Any) -> Document:
    instruction = _get(row, "instruction", str)
    source = row
    if isinstance(row.get("instances"), list) and row["instances"]:
        source = row["instances"][0]
    given = _first(source, ("input",)) or ""
    answer = _first(source, RESPONSE_KEYS)
    prompt = f"{instruction}\n\n{given}" if given else instruction
    system = row.get("system")
    return _pair(prompt, answer, system if isinstance(system, str) else None)


def _prompt_response(row: Any) -> Document:
    if not isinstance(row, Mapping):
        raise RowError("not an object")
    prompt = _first(row, PROMPT_KEYS)
    if prompt is None:
        raise RowError("no prompt")
    return _pair(prompt, _first(row, RESPONSE_KEYS))


def _text(row: Any) -> Document:
    return Document(text=_get(row, "text", str))


READERS: dict[str, Callable[[Any], Document]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt_response": _prompt_response,
    "text": _text,
}


def _pair(prompt: str, answer: str | None, system: str | None = None) -> Document:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    messages.append({"role": "assistant", "content": answer or ""})
    return Document(messages=messages)


def _message(message: Any, role: Any) -> Message:
    if not isinstance(message, Mapping):
        raise RowError("a message is not an object")
    if not isinstance(role, str):
        raise RowError("a message has no known role")
    return {**message, "role": role, "content": _content(message.get("content"))}


def _content(content: Any) -> str:
    """Plain text of a content: null is empty, typed parts are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, Mapping) and part.get("type") == "text":
            parts.append(str(part.get("value", "")))
        else:
            raise RowError("a content part is not text")
    return "".join(parts)


def _answered(document: Document) -> Document:
    """Cut what follows the last answer: it carries no loss."""
    messages = document.messages
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not any(messages[i]["content"].strip() or messages[i].get("tool_calls") for i in answers):
        raise RowError("no answer")
    return Document(messages=messages[: answers[-1] + 1], tools=document.tools)


def _tools(row: Any) -> list[Any] | None:
    tools = row.get("tools") if isinstance(row, Mapping) else None
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            return None
    return tools if isinstance(tools, list) and tools else None


def _first(row: Any, keys: tuple[str, ...]) -> str | None:
    if not isinstance(row, Mapping):
        return None
    return next((row[key] for key in keys if isinstance(row.get(key), str)), None)


def _get(row: Any, key: str, kind: type) -> Any:
    value = row.get(key) if isinstance(row, Mapping) else None
    if not isinstance(value, kind):
        raise RowError(f"no {key!r}")
    return value

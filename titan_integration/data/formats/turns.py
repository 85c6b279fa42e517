"""One message of a conversation, by whichever names its keys and roles go."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from titan_integration.data.formats.calls import read_calls
from titan_integration.data.formats.document import (
    BadPicture,
    Document,
    Message,
    Reading,
    RowError,
)
from titan_integration.data.formats.parts import read_content, with_placeholders

ROLES = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "tool_response": "tool",
    "function": "tool",
}
CALL_ROLES = ("function_call", "tool_call")
TRAIN_KEYS = ("train", "training", "weight", "loss", "loss_weight")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
PLAIN_KEYS = frozenset(("role", "from", "content", "value"))
READ_KEYS = PLAIN_KEYS | {"tool_calls", "function_call", *TRAIN_KEYS, *REASONING_KEYS}
SYSTEM_COLUMNS = ("system", "system_prompt", "system_message")


@dataclass(frozen=True, slots=True)
class Turn:
    """A message as chat templates read it, its pictures, and whether the row trains on it."""

    message: Message
    train: bool | None
    unread: frozenset[str]
    pictures: list[Any]


def conversation(
    turns: Iterable[Any],
    reading: Reading,
    *,
    system: str | None = None,
    tools: list[Any] | None = None,
    trained: bool = True,
) -> Document:
    """The document of a list of messages.

    Args:
        turns: The messages, as the row holds them.
        reading: Names of roles.
        system: Text of a system column; stands first, unless the messages say the same.
        tools: Tool descriptions.
        trained: Whether answers are trained on where they say nothing themselves.

    Raises:
        RowError: One of them is no message.
    """
    read = [read_turn(turn, reading.roles) for turn in turns]
    messages, unread = [turn.message for turn in read], {key for t in read for key in t.unread}
    flags = [trained if turn.train is None else turn.train for turn in read]
    if system:
        if not messages or messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
            flags.insert(0, trained)
        elif messages[0]["content"].strip() != system.strip():
            unread.add("system (beside another system turn)")
    untrained = (i for i, m in enumerate(messages) if m["role"] == "assistant" and not flags[i])
    return Document(
        messages=messages,
        untrained=frozenset(untrained),
        pictures=tuple(picture for turn in read for picture in turn.pictures),
        tools=tools,
        unread=frozenset(unread),
    )


def read_turn(turn: Any, roles: Mapping[str, str]) -> Turn:
    """Read one message.

    Raises:
        RowError: It is no message, of an unknown role, or weighted by a fraction.
        Refused: It holds films or sounds, or is an answer with a picture.
    """
    if not isinstance(turn, dict):
        raise RowError("a message is not an object")
    turn = {key: value for key, value in turn.items() if value is not None}
    name, role = _role(turn, roles)
    content = read_content(turn.get("content", turn.get("value")))
    if role != "assistant":
        with_placeholders(content)
    elif content.pictures:
        raise BadPicture("an answer has a picture", "an answer has a picture: it must be text")
    message: Message = {"role": role, "content": content.text}
    calls, reasoning = content.calls, content.reasoning
    if name in CALL_ROLES:
        calls, message["content"] = read_calls(content.text) + calls, ""
    if not turn.keys() <= PLAIN_KEYS:
        calls = calls + read_calls(turn.get("tool_calls") or turn.get("function_call") or [])
        own = (turn[key] for key in REASONING_KEYS if isinstance(turn.get(key), str))
        reasoning = reasoning or next(own, "")
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = reasoning
    train = _train(turn)
    unread = {"messages[].weight"} if train and role != "assistant" else set()
    for key in turn.keys() - READ_KEYS:
        if turn[key] not in ("", [], {}):
            message.setdefault(key, turn[key])
    return Turn(message, train, frozenset(unread), content.pictures)


def _role(turn: Message, roles: Mapping[str, str]) -> tuple[str, str]:
    key = "role" if "role" in turn else "from"
    name = turn.get(key)
    if not isinstance(name, str):
        raise RowError("a message has no role")
    known = roles.get(name, ROLES.get(name.lower()))
    if known is not None:
        return name, known
    if key == "role":
        return name, name  # A chat template may know it, or refuse it in its own words.
    raise RowError(f"no known role {name!r}; say what it is by --data.roles {name}=user")


def _train(turn: Message) -> bool | None:
    """Whether the message says to train on it; None where it says nothing."""
    said = [turn[key] for key in TRAIN_KEYS if key in turn]
    for value in said:
        if value not in (0, 1):
            raise RowError("a message's weight must be 0 or 1: loss is taken on all of it or none")
    return all(said) if said else None

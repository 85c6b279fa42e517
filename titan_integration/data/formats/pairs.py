"""Rows of one question and one answer, as text or as messages."""

from typing import Any

from titan_integration.data.formats.calls import read_tools
from titan_integration.data.formats.document import Document, Reading, RowError
from titan_integration.data.formats.fields import Fields
from titan_integration.data.formats.turns import SYSTEM_COLUMNS, conversation, read_turn

PROMPTS = ("prompt", "question", "query", "input", "instruction")
RESPONSES = ("response", "completion", "answer", "output", "target")
CONTEXTS = ("context", "passage")


def fits(fields: Fields) -> bool:
    """Whether there are both a question and an answer."""
    return fields.first(PROMPTS) is not None and fields.first(RESPONSES) is not None


def read(fields: Fields, reading: Reading) -> Document:
    """The prompt as a user turn and the response as the answer; ``context`` follows the prompt.

    Where the prompt is a list of messages, the answers in it are context and not trained on.
    """
    prompt, response = fields.first(PROMPTS), fields.first(RESPONSES)
    if prompt is None:
        raise RowError("no prompt")
    answer = [] if response is None else _turns(fields, response, "assistant")
    return joined(fields, prompt, answer, reading)


def joined(fields: Fields, prompt: str | None, answer: list[Any], reading: Reading) -> Document:
    """The document of a prompt column and the turns that answer it."""
    before = [] if prompt is None else _turns(fields, prompt, "user")
    context = fields.text(*CONTEXTS)
    if context and before and isinstance(before[-1]["content"], str):
        before[-1] = {**before[-1], "content": f"{before[-1]['content']}\n\n{context}"}
    for turn in before:
        if read_turn(turn, reading.roles).message["role"] == "assistant":
            turn.setdefault("train", False)
    return conversation(
        before + answer,
        reading,
        system=fields.text(*SYSTEM_COLUMNS),
        tools=read_tools(fields.get("tools")),
    )


def _turns(fields: Fields, name: str, role: str) -> list[Any]:
    if not fields.has(name, list, dict):
        return [{"role": role, "content": fields.text(name)}]
    value = fields.get(name)
    turns = value if isinstance(value, list) else [value]
    if not all(isinstance(turn, dict) for turn in turns):
        raise RowError(f"{name!r} is neither text nor a list of messages")
    return [dict(turn) for turn in turns]

"""A chat template: where it comes from, what it reads of messages, and what it writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from titan_integration.data.encoding.marked_jinja import (
    MARKS,
    Marks,
    environment,
    has_generation_marks,
    names_in,
    probes_in,
    with_turn_marks,
)
from titan_integration.data.formats.document import Message, RowError
from titan_integration.errors import UserError

REASONING = "reasoning_content"
_QUESTION: Message = {"role": "user", "content": "?"}


@dataclass(frozen=True, slots=True)
class Rendering:
    """A conversation as text.

    Attributes:
        text: What the template wrote.
        turns: Number of a message -> the span of its turn in the text; not of messages that the
            template writes outside its loop over them.
        generated: Spans of ``{% generation %}`` blocks.
    """

    text: str
    turns: dict[int, tuple[int, int]]
    generated: list[tuple[int, int]]


class ChatTemplate:
    """One compiled chat template.

    Attributes:
        names: Every name that it may read.
        probes: Texts that it looks for in messages.
        has_marks: Whether it has ``{% generation %}`` blocks.
        leads: What is known of how it begins answers; see ``Conversation``.

    Args:
        source: Jinja.
        name: What to call it in messages.
        special: ``bos_token``, ``eos_token`` and the like.
        now: What ``strftime_now`` tells.

    Raises:
        UserError: The source is no valid template.
    """

    def __init__(
        self, source: str, *, name: str, special: Mapping[str, str], now: datetime
    ) -> None:
        made = environment(now)
        try:
            parsed = made.parse(source)
            self.names = names_in(parsed)
            self.probes = probes_in(parsed)
            self.has_marks = has_generation_marks(parsed)
            self.source = source
            self._template = made.from_string(with_turn_marks(parsed))
        except TemplateSyntaxError as error:
            raise UserError(
                f"the chat template {name} is not valid: line {error.lineno}: {error.message}; "
                "give another one by --data.chat_template FILE"
            ) from error
        self._special = dict(special)
        self.leads: dict[Any, str] = {}

    def render(
        self, messages: list[Message], tools: list[Any] | None = None, *, prompt: bool = False
    ) -> Rendering:
        """Render messages that :meth:`adapted` gave; ``prompt`` adds the generation prompt.

        Raises:
            RowError: The template refuses them, in its own words.
        """
        marks = Marks(messages)
        try:
            text = self._template.render(
                messages=messages,
                tools=tools,
                add_generation_prompt=prompt,
                **self._special,
                **{MARKS: marks},
            )
        except Exception as error:  # Whatever a template raises is the template's verdict.
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise RowError(f"the chat template refuses it: {words}") from error
        return Rendering(*marks.take_out(text))

    def adapted(self, messages: list[Message]) -> list[Message]:
        """Copies of messages whose reasoning and tool calls are as this template reads them."""
        copies = [dict(message) for message in messages]
        for message in copies:
            if REASONING in message and REASONING not in self.names:
                for name in ("thinking", "reasoning"):
                    if name in self.names:
                        message[name] = message[REASONING]
            if "tool_calls" in message and self._takes_arguments_as_text:
                message["tool_calls"] = [_with_text(call) for call in message["tool_calls"]]
        return _with_ids(copies) if "tool_call_id" in self.names else copies

    def unread(self, messages: list[Message], tools: list[Any] | None) -> set[str]:
        """What of a row this template does not read, as names for the report."""
        keys = {key for message in messages for key in message} - self.names
        if REASONING in keys and self.names & {"thinking", "reasoning"}:
            keys.remove(REASONING)
        found = {f"messages[].{key}" for key in keys - {"name", "tool_call_id", "tool_calls"}}
        if tools and "tools" not in self.names:
            found.add("tools (the chat template does not read them)")
        return found

    @cached_property
    def generation_prompt(self) -> str:
        """What the template adds for the model to go on, after a question.

        Raises:
            RowError: It refuses even a single question.
        """
        question = [dict(_QUESTION)]
        asked, plain = self.render(question, prompt=True), self.render(question).text
        if 0 in asked.turns:
            return asked.text[asked.turns[0][1] :]
        return asked.text[len(plain) :] if asked.text.startswith(plain) else ""

    def picture_word(self, image_token: str) -> str | None:
        """What it writes for a picture, with ``image_token`` once; None if it knows no pictures."""
        words = "Which picture is it?"
        parts = [{"type": "image"}, {"type": "text", "text": words}]
        try:
            plain = self.render([{"role": "user", "content": words}]).text
            asked = self.render([{"role": "user", "content": parts}]).text
        except RowError:
            return None
        before, _, after = plain.partition(words)
        word = asked.removeprefix(before).removesuffix(words + after)
        return word if word.count(image_token) == 1 and before + word in asked else None

    @cached_property
    def _takes_arguments_as_text(self) -> bool:
        """Whether arguments of tool calls must be JSON text; most templates take an object."""
        call = {
            "type": "function",
            "id": "call00001",
            "function": {"name": "f", "arguments": {"a": 1}},
        }
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            self.render([_QUESTION, answer])
        except RowError:
            try:
                self.render([_QUESTION, {**answer, "tool_calls": [_with_text(call)]}])
            except RowError:
                return False
            return True
        return False


def find_templates(
    folder: str | Path, config: Mapping[str, Any], choice: str | None
) -> dict[str, str]:
    """The sources of the templates to use: ``default``, and ``tool_use`` for rows with tools.

    Args:
        folder: Of the tokenizer.
        config: The content of its ``tokenizer_config.json``.
        choice: A file, or the name of one of the tokenizer's templates; None takes its default.

    Raises:
        UserError: The choice is neither, or there are several templates and none is the default.
    """
    if choice is not None and Path(choice).is_file():
        return {"default": Path(choice).read_text(encoding="utf-8")}
    named = _named_templates(Path(folder), config)
    known = f"{folder} has {', '.join(sorted(named)) or 'none'}"
    if choice is not None:
        if choice not in named:
            raise UserError(
                "data.chat_template must be a file or a template of the tokenizer, "
                f"got {choice!r}; {known}"
            )
        return {"default": named[choice]}
    if named and "default" not in named:
        raise UserError(
            f"no chat template is the default one: {known}; choose by --data.chat_template"
        )
    return {name: named[name] for name in ("default", "tool_use") if name in named}


def _named_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    listed = config.get("chat_template")
    if isinstance(listed, str):
        named["default"] = listed
    elif isinstance(listed, list):
        named.update({item["name"]: item["template"] for item in listed})
    for path in (folder / "additional_chat_templates").glob("*.jinja"):
        named[path.stem] = path.read_text(encoding="utf-8")
    single = folder / "chat_template.jinja"
    if single.is_file():
        named["default"] = single.read_text(encoding="utf-8")
    return named


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _with_ids(messages: list[Message]) -> list[Message]:
    """Give calls without an id one, and their results the same, in order."""
    waiting: list[str] = []
    number = 0
    for message in messages:
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                number += 1
                calls.append({"id": f"call{number:05d}", **call})
            message["tool_calls"] = calls
            waiting = [call["id"] for call in calls]
        elif message["role"] == "tool" and "tool_call_id" not in message and waiting:
            message["tool_call_id"] = waiting.pop(0)
    return messages

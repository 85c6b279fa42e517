"""A conversation -> the texts to train on, and where in them the answers are.

The rule: an answer is what the model would have to write in the context that it would see. The
context is the messages before it with the template's generation prompt; the answer is the rest of
its turn, its end token included. For an answer ``b`` to a question ``a``, in ChatML:

    <|im_start|>user\\na<|im_end|>\\n<|im_start|>assistant\\n    b<|im_end|>
    ---------------------- context --------------------------    - answer -

Where a template writes each turn alike whether it is the last or not, one text holds all answers.
Where it does not, as with templates that drop the reasoning of earlier turns, no one text shows
every answer's context, and each answer becomes a sample of its own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from odb_nodes.vision import Picture
from titan_integration.data.encoding.chat_template import REASONING, ChatTemplate, Rendering
from titan_integration.data.formats.document import Message, RowError

MOST_SHAPES = 4096
Span = tuple[int, int]
_OPENED = re.compile(r"<(think|thinking|reasoning)>\s*\Z")
_THOUGHT = re.compile(r"\s*(?:<think>)?(.*?)</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of one sample.

    Attributes:
        text: With its control tokens.
        spans: Begin and end of what is trained on, in order.
        owners: The number of the message that each span belongs to.
        own_marks: Whether the template marked the spans itself; then the text ends as it ends.
        pictures: Those of the text, in order, each of which stands there as one placeholder.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    owners: tuple[int, ...]
    own_marks: bool = False
    pictures: tuple[Picture, ...] = ()


class Conversation:
    """Messages under a template, rendered as often as is needed and no more.

    Args:
        template: The template.
        messages: As the template reads them, up to the last answer to train on.
        tools: Tool descriptions.
        answers: The numbers of the messages to train on, in order.
    """

    def __init__(
        self,
        template: ChatTemplate,
        messages: list[Message],
        tools: list[Any] | None,
        answers: Sequence[int],
    ) -> None:
        self.template = template
        self.messages = messages
        self.tools = tools
        self.answers = answers
        self._full: Rendering | None = None
        # Tools stand first in the prompt; their part in the shape is with the first message.
        self._shape = tuple(
            (self._kind(message), i == 0 and bool(tools)) for i, message in enumerate(messages)
        )
        self._later: list[frozenset[str]] = []
        roles: frozenset[str] = frozenset()
        for message in reversed(messages):
            self._later.append(roles)
            roles |= {message["role"]}
        self._later.reverse()

    @property
    def full(self) -> Rendering:
        """All of it. Raises RowError where the template refuses it or leaves part of it out."""
        if self._full is None:
            self._full = self.template.render(self.messages, self.tools)
            self._check_complete(self._full)
        return self._full

    def whole(self) -> Rendered | None:
        """One text with all answers; None where it would not show each one's context.

        Raises:
            RowError: The template refuses the conversation, or leaves part of it out.
        """
        return self._marked() if self.template.has_marks else self._unmarked()

    def alone(self, i: int) -> Rendered:
        """Answer ``i`` in the context that the model sees before it writes it."""
        written = self._up_to(i)
        text = written.text
        begin, _ = written.turns.get(i, (None, None))
        shape = self._shape[: i + 1]
        if begin is not None and shape in self.template.leads:
            lead = self.template.leads[shape]
            if text.startswith(lead, begin):
                return Rendered(text, ((begin + len(lead), len(text)),), (i,))
        try:
            prompt = self._prompt(i)
        except RowError:
            # A template may refuse a conversation that has no question yet.
            if begin is None:
                raise
            prompt = text[:begin] + self.template.generation_prompt
        if text.startswith(prompt):
            if begin is not None and len(prompt) >= begin:
                self._remember(shape, prompt[begin:])
            return Rendered(text, ((len(prompt), len(text)),), (i,))
        if begin is None:
            raise RowError("the chat template writes an answer otherwise than it asks for it")
        turn = text[begin:]
        asked = self._asked(prompt, text[:begin], i)
        common = _common_prefix(asked, turn)
        whole = prompt + _closing(prompt, asked[common:], self.messages[i]) + turn[common:]
        return Rendered(whole, ((len(prompt), len(whole)),), (i,))

    def _unmarked(self) -> Rendered | None:
        """The full text and the spans that the model would write.

        Answers of one kind are taken to be written alike, so that only the first of each kind is
        compared with what the model would see: rendering grows with the number of messages.
        """
        shape = (self._shape, tuple(self.answers))
        if shape in self.template.leads:
            return None
        text = self.full.text.rstrip("\n")
        spans = []
        for i in self.answers:
            span = self._span(i, text)
            if span is None:
                self._remember(shape, "")
                return None
            spans.append(span)
        return Rendered(text, tuple(spans), tuple(self.answers))

    def _span(self, i: int, text: str) -> Span | None:
        """Where answer ``i`` is in the full text; None if that shows it otherwise."""
        if i not in self.full.turns:
            return None
        begin, end = self.full.turns[i]
        around = self._shape[max(0, i - 1) : i + 2]
        kind = (i == 0, self._shape[0], around, self._later[i])
        lead = self.template.leads.get(kind)
        if lead is None or not text.startswith(lead, begin):
            lead = self._verified_lead(i, text)
            if lead is None:
                return None
            self._remember(kind, lead)
        stop = len(text) if i == self.answers[-1] else begin + len(text[begin:end].rstrip("\n"))
        return begin + len(lead), stop

    def _verified_lead(self, i: int, text: str) -> str | None:
        """How the turn begins before the model writes; None if the full text shows it otherwise."""
        begin, end = self.full.turns[i]
        try:
            prompt = self._prompt(i)
            written = self.full if i == len(self.messages) - 1 else self._up_to(i)
        except RowError:
            return None
        if len(prompt) < begin or not text.startswith(prompt) or i not in written.turns:
            return None
        alone = written.text[slice(*written.turns[i])].rstrip("\n")
        return prompt[begin:] if alone == text[begin:end].rstrip("\n") else None

    def _remember(self, shape: Any, lead: str) -> None:
        if len(self.template.leads) >= MOST_SHAPES:
            self.template.leads.clear()
        self.template.leads[shape] = lead

    def _marked(self) -> Rendered:
        full = self.full
        owners = [self._owner(full, begin) for begin, _ in full.generated]
        kept = [
            (span, owner)
            for span, owner in zip(full.generated, owners, strict=True)
            if owner in self.answers
        ]
        if {owner for _, owner in kept} != set(self.answers):
            raise RowError("the chat template's generation marks leave out an answer")
        return Rendered(
            full.text,
            tuple(span for span, _ in kept),
            tuple(owner for _, owner in kept),
            own_marks=True,
        )

    def _kind(self, message: Message) -> Any:
        """What a template can tell messages apart by, their other words aside."""
        content = message["content"]
        return (
            message["role"],
            *message,
            bool(content.strip()),
            len(message.get("tool_calls") or ()),
            *(probe for probe in self.template.probes if probe in content),
        )

    def _owner(self, full: Rendering, at: int) -> int:
        found = [i for i, (begin, end) in full.turns.items() if begin <= at < end]
        return found[0] if found else -1

    def _prompt(self, i: int) -> str:
        return self.template.render(self.messages[:i], self.tools, prompt=True).text

    def _up_to(self, i: int) -> Rendering:
        """The conversation that ends with answer ``i``, without the newlines at its end.

        Where the template refuses it, as it may before the first question, its part of the full
        text.
        """
        if i == len(self.messages) - 1:
            full = self.full
            return Rendering(full.text.rstrip("\n"), full.turns, full.generated)
        try:
            written = self.template.render(self.messages[: i + 1], self.tools)
        except RowError:
            if i not in self.full.turns:
                raise
            written = self.full
            text = written.text[: written.turns[i][1]]
            return Rendering(text.rstrip("\n"), written.turns, written.generated)
        self._check_complete(written, only=i)
        return Rendering(written.text.rstrip("\n"), written.turns, written.generated)

    def _asked(self, prompt: str, before: str, i: int) -> str:
        """What of a prompt the template added for the model to go on."""
        if prompt.startswith(before):
            return prompt[len(before) :]
        plain = self.template.render(self.messages[:i], self.tools).text
        if prompt.startswith(plain):
            return prompt[len(plain) :]
        added = self.template.generation_prompt
        return added if added and prompt.endswith(added) else ""

    def _check_complete(self, rendering: Rendering, only: int | None = None) -> None:
        numbers = range(len(self.messages)) if only is None else [only]
        for i in numbers:
            if i in rendering.turns:
                self._check_turn(self.messages[i], rendering.text[slice(*rendering.turns[i])])
            elif self.messages[i]["role"] == "assistant":
                self._check_turn(self.messages[i], rendering.text)

    def _check_turn(self, message: Message, turn: str) -> None:
        role, content = message["role"], message["content"]
        if role == "assistant":
            # What comes before a text that the template looks for may go, as reasoning does.
            for probe in self.template.probes:
                content = content.rpartition(probe)[2]
            names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            if content.strip() not in turn:
                raise RowError("the chat template leaves out the text of an answer")
            if not all(name in turn for name in names):
                raise RowError("the chat template leaves out tool calls")
        elif role != "system" and content.strip() and not turn.strip():
            raise RowError(f"the chat template leaves out {role!r} turns")


def _common_prefix(one: str, other: str) -> int:
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))


def _closing(prompt: str, unanswered: str, message: Message) -> str:
    """The reasoning that the prompt has begun and the template left out, and its end.

    A prompt that ends in ``<think>`` and an answer that the template writes without reasoning:
    what the model has to write is the reasoning, empty or not, its end, and the answer.
    """
    opened = _OPENED.search(prompt)
    if opened is None or not unanswered.strip():
        return ""
    found = _THOUGHT.match(message["content"])
    reasoning = message.get(REASONING) or (found[1] if found else "")
    return f"{reasoning.strip()}\n</{opened[1]}>\n\n"

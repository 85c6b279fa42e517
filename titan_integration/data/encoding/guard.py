"""A conversation's own text guarded against control tokens, with what it renders to kept."""

from typing import Any

from titan_integration.data.encoding.chat_template import ChatTemplate
from titan_integration.data.encoding.control_tokens import GUARD, ControlTokens
from titan_integration.data.formats.document import Message, RowError


def guarded(
    template: ChatTemplate,
    control: ControlTokens,
    messages: list[Message],
    tools: list[Any] | None,
) -> tuple[list[Message], list[Any] | None]:
    """Break the names of control tokens in all that the row says.

    A template may look for such a name itself, as Qwen's does for ``</think>`` in an answer, and
    then writes it where the model would. Those are left as they are: each name in each message is
    broken only if that leaves the rendered text the same.

    Raises:
        RowError: The template refuses the conversation.
    """
    plain = template.render(messages, tools).text
    units: list[Any] = [*messages, tools]
    everywhere = [control.guarded(unit) for unit in units]
    if _renders_to(plain, template, everywhere):
        units = everywhere
    else:
        for i, unit in enumerate(units):
            for name in sorted(control.names_in(unit)):
                changed = [*units[:i], control.guarded(units[i], name), *units[i + 1 :]]
                if _renders_to(plain, template, changed):
                    units = changed
    return units[:-1], units[-1]


def _renders_to(plain: str, template: ChatTemplate, units: list[Any]) -> bool:
    try:
        return template.render(units[:-1], units[-1]).text.replace(GUARD, "") == plain
    except RowError:
        return False

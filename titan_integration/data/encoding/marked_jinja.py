"""Jinja as chat templates expect it, made to tell which text belongs to which message.

Two kinds of marks are written into the rendered text and taken out again: one where a loop over
the messages begins with the next of them, one around ``{% generation %}`` blocks. For the template
``{% for m in messages %}[{{ m.content }}]{% endfor %}!`` and contents a and bc the text comes out
as ``|[a]|[bc]|!``, which gives the turns (0, 3) and (3, 7) of ``[a][bc]!``.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A code point that Unicode keeps out of texts; rows that hold it are refused.
MARK = "\ufdd0"
Span = tuple[int, int]
TURN, LOOP_END, GENERATION = "__turn__", "__loop_end__", "__generation__"
GENERATION_START, GENERATION_END = "start", "end"


class Generation(Extension):
    """``{% generation %}...{% endgeneration %}``: what the model writes, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start, end = (
            _call(GENERATION, nodes.Const(side), lineno=lineno)
            for side in (GENERATION_START, GENERATION_END)
        )
        return [start, nodes.Scope(body, lineno=lineno), end]


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for what templates do most: read a key of a message.

    ``{{ message.role }}`` asks for an attribute first, whose absence costs an exception each time.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


_DICT_ATTRIBUTES = frozenset(dir(dict))


def environment(now: datetime) -> Environment:
    """A sandbox with the helpers that ``transformers`` gives to chat templates.

    Args:
        now: What ``strftime_now`` tells, so that a run's prompts do not change at midnight.
    """
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = now.strftime
    return made


def with_turn_marks(template: nodes.Template) -> nodes.Template:
    """Call ``__turn__(loop, item)`` at the start of each loop's pass, ``__loop_end__`` after it."""
    _mark_loops(template, iter(range(10**9)))
    return template


def names_in(template: nodes.Template) -> frozenset[str]:
    """Every name, attribute and text constant: what a template may read of a message."""
    found = {node.name for node in template.find_all(nodes.Name)}
    found |= {node.attr for node in template.find_all(nodes.Getattr)}
    constants = (node.value for node in template.find_all(nodes.Const))
    return frozenset(found | {value for value in constants if isinstance(value, str)})


def has_generation_marks(template: nodes.Template) -> bool:
    """Whether the template says itself what the model writes."""
    return any(node.name == GENERATION for node in template.find_all(nodes.Name))


def _mark_loops(node: nodes.Node, numbers: Any) -> None:
    for name, value in node.iter_fields():
        if not isinstance(value, list):
            if isinstance(value, nodes.Node):
                _mark_loops(value, numbers)
            continue
        marked: list[Any] = []
        for child in value:
            if isinstance(child, nodes.Node):
                _mark_loops(child, numbers)
            marked.append(child)
            if isinstance(child, nodes.For):
                number = nodes.Const(next(numbers))
                items = [nodes.Name(name, "load") for name in _targets(child.target)]
                child.body.insert(0, _call(TURN, number, *items, lineno=child.lineno))
                marked.append(_call(LOOP_END, number, lineno=child.lineno))
        setattr(node, name, marked)


def _targets(target: nodes.Node) -> list[str]:
    names = [target] if isinstance(target, nodes.Name) else target.find_all(nodes.Name)
    return [name.name for name in names]


def _call(function: str, *arguments: nodes.Expr, lineno: int) -> nodes.Output:
    called = nodes.Call(nodes.Name(function, "load"), list(arguments), [], None, None)
    output = nodes.Output([called], lineno=lineno)
    return output.set_lineno(lineno)  # type: ignore[return-value]


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja's own filter, as ``transformers`` does it."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


class Marks:
    """The marks of one rendering, in the order in which they were written.

    Args:
        messages: The messages that are rendered.
    """

    def __init__(self, messages: list[Any]) -> None:
        self._numbers = {id(message): i for i, message in enumerate(messages)}
        self._loops: set[int] = set()
        self._events: list[int | str] = []

    def functions(self) -> dict[str, Callable[..., str]]:
        """What the marked template calls."""
        return {TURN: self._turn, LOOP_END: self._loop_end, GENERATION: self._write}

    def take_out(self, marked: str) -> tuple[str, dict[int, Span], list[Span]]:
        """The text, the span of each message's turn in it, and the spans of generation blocks.

        No spans where marks were lost on the way, as in a text that a template kept for later.
        """
        pieces = marked.split(MARK)
        text = "".join(pieces)
        turns: dict[int, Span] = {}
        generated: list[Span] = []
        if len(pieces) != len(self._events) + 1:
            return text, turns, generated
        at = begin = start = 0
        turn: int | None = None
        for piece, event in zip(pieces, self._events, strict=False):
            at += len(piece)
            if event == GENERATION_START:
                start = at
            elif event == GENERATION_END:
                generated.append((start, at))
            else:
                if turn is not None and (at > begin or turn not in turns):
                    turns[turn] = (begin, at)
                turn, begin = event if isinstance(event, int) else None, at
        return text, turns, generated

    def _turn(self, loop: int, *items: Any) -> str:
        for item in items:
            number = self._numbers.get(id(item))
            if number is not None:
                self._loops.add(loop)
                return self._write(number)
        return ""

    def _loop_end(self, loop: int) -> str:
        return self._write(LOOP_END) if loop in self._loops else ""

    def _write(self, event: int | str) -> str:
        self._events.append(event)
        return MARK

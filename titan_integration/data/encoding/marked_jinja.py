"""Jinja as chat templates expect it, made to tell which text belongs to which message.

Two kinds of marks are written into the rendered text and taken out again: one where a loop over
the messages begins with the next of them, one around ``{% generation %}`` blocks. For the template
``{% for m in messages %}[{{ m.content }}]{% endfor %}!`` and contents a and bc the text comes out
as ``|[a]|[bc]|!``, which gives the turns (0, 3) and (3, 7) of ``[a][bc]!``.
"""

import json
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A code point that Unicode keeps out of texts; rows that hold it are refused.
MARK = "\ufdd0"
Span = tuple[int, int]
MARKS = "__marks__"  # What a marked template calls the marks of its rendering.
GENERATION_START, GENERATION_END = "generation starts", "generation ends"


class Generation(Extension):
    """``{% generation %}...{% endgeneration %}``: what the model writes, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start, end = (
            _mark(nodes.Const(side), lineno=lineno) for side in (GENERATION_START, GENERATION_END)
        )
        return [start, nodes.Scope(body, lineno=lineno), end]


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for what templates do most: read a key of a message.

    ``{{ message.role }}`` asks for an attribute first, whose absence costs an exception each time.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is Marks:
            return obj.mark(argument)
        if type(obj) is dict and type(argument) is str and argument in obj:
            return obj[argument]
        return super().getitem(obj, argument)


_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_ATTRIBUTES = frozenset(("first", "last", "index", "index0", "previtem", "nextitem"))


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
    """Mark the start of each loop's passes, with the item it is about, and the loop's end."""
    _mark_loops(template, iter(range(10**9)))
    return template


def names_in(template: nodes.Template) -> frozenset[str]:
    """Every name, attribute and text constant: what a template may read of a message."""
    found = {node.name for node in template.find_all(nodes.Name)}
    found |= {node.attr for node in template.find_all(nodes.Getattr)}
    constants = (node.value for node in template.find_all(nodes.Const))
    return frozenset(found | {value for value in constants if isinstance(value, str)})


def probes_in(template: nodes.Template) -> list[str]:
    """Texts that the template looks for in others, as ``</think>`` in an answer."""
    found: set[Any] = set()
    for compared in template.find_all(nodes.Compare):
        found |= {node.value for node in compared.find_all(nodes.Const)}
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr):
            found |= {node.value for arg in call.args for node in arg.find_all(nodes.Const)}
            found |= {arg.value for arg in call.args if isinstance(arg, nodes.Const)}
    return sorted(text for text in found if isinstance(text, str) and text.strip())


def has_generation_marks(template: nodes.Template) -> bool:
    """Whether the template says itself what the model writes."""
    return any(node.value == GENERATION_START for node in template.find_all(nodes.Const))


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
                child.body.insert(0, _mark(number, *items, lineno=child.lineno))
                marked.append(_mark(number, lineno=child.lineno))
        setattr(node, name, marked)


def _targets(target: nodes.Node) -> list[str]:
    names = [target] if isinstance(target, nodes.Name) else target.find_all(nodes.Name)
    return [name.name for name in names]


def _mark(*arguments: nodes.Expr, lineno: int) -> nodes.Output:
    """``{{ __marks__[arguments] }}``; a subscript, since the sandbox makes calls expensive."""
    key = nodes.Tuple(list(arguments), "load")
    output = nodes.Output([nodes.Getitem(nodes.Name(MARKS, "load"), key, "load")], lineno=lineno)
    output.set_lineno(lineno)
    return output


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
        self._events: list[int | str | None] = []

    def mark(self, about: tuple[Any, ...]) -> str:
        """A mark, if it is one of a message, of the end of a loop over them, or of generation.

        Args:
            about: The number of a loop and the items of its pass, or that number alone at its
                end; or one of the sides of a generation block.
        """
        first, *items = about
        if isinstance(first, str):
            return self._write(first)
        for item in items:
            number = self._numbers.get(id(item))
            if number is not None:
                self._loops.add(first)
                return self._write(number)
        return self._write(None) if not items and first in self._loops else ""

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

    def _write(self, event: int | str | None) -> str:
        self._events.append(event)
        return MARK

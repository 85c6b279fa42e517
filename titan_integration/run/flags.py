"""The flags of a configuration, read off its dataclasses: names, defaults, what they are for."""

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One setting that the command line can change.

    Attributes:
        name: Dotted, without the dashes in front.
        default: Its value in the configuration.
        kind: Its type.
        text: What it is for, in one paragraph.
    """

    name: str
    default: Any
    kind: Any
    text: str

    def lines(self, width: int, most: int) -> list[str]:
        """``--name VALUES  text (default)`` on at most so many lines of so many characters."""
        head = f"  --{self.name} {self._values()}".rstrip()
        default = "" if self.default in (None, [], "") else f" ({_shown(self.default)})"
        lines = textwrap.wrap(
            self.text.replace("``", "") + default,
            width - _COLUMN,
            max_lines=most,
            placeholder=f" ...{default}",
        )
        if len(head) >= _COLUMN - 1:  # the text begins on a line of its own
            return [head, *(" " * _COLUMN + line for line in lines[: most - 1])]
        rest = [" " * _COLUMN + line for line in lines[1:]]
        return [f"{head:<{_COLUMN}}{lines[0] if lines else ''}", *rest]

    def _values(self) -> str:
        if isinstance(self.default, bool):
            return ""
        kinds = [kind for kind in _members(self.kind) if kind is not type(None)]
        literals = [str(v) for kind in kinds if get_origin(kind) is Literal for v in get_args(kind)]
        if literals:
            return "|".join(literals)
        return "A,B" if get_origin(kinds[0]) is list else getattr(kinds[0], "__name__", "VALUE")


_COLUMN = 40


def _shown(value: Any) -> str:
    return "on" if value is True else "off" if value is False else str(value)


def _members(kind: Any) -> list[Any]:
    if get_origin(kind) in (Union, types.UnionType):
        return list(get_args(kind))
    return [kind]


def flags_of(config: Any, prefix: str = "") -> Iterator[Flag]:
    """All settings of a dataclass and those in it, in their order."""
    owner: Any = type(config)
    kinds, texts = get_type_hints(owner), _texts(owner)
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            yield from flags_of(value, f"{prefix}{field.name}.")
        else:
            yield Flag(
                name=f"{prefix}{field.name}",
                default=value,
                kind=kinds.get(field.name),
                text=texts.get(field.name, ""),
            )


@functools.cache
def _texts(owner: type) -> dict[str, str]:
    """The strings that stand below a dataclass's fields, its bases' included."""
    found: dict[str, str] = {}
    for kind in reversed(owner.__mro__[:-1]):
        try:
            [node] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        except (OSError, TypeError, SyntaxError):
            continue
        assert isinstance(node, ast.ClassDef)
        for statement, following in zip(node.body, node.body[1:], strict=False):
            is_field = isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr)
            if is_field and isinstance(following.value, ast.Constant):  # type: ignore[attr-defined]
                text = " ".join(str(following.value.value).split())  # type: ignore[attr-defined]
                found[statement.target.id] = text.replace("``", "")  # type: ignore[attr-defined]
    return found

"""Control tokens in the text of a row, which must stay text.

Where a row's own text holds the name of a control token, as a question about chat templates does,
its name is broken by a guard character in every place before the template is rendered; what is
whole afterwards was written by the template. The rendered text is then tokenized by a copy of the
tokenizer whose control tokens have broken names, and the two kinds of names change places:

    content ``a <|end|>``   rendered ``<|user|>a <^|end|>``   tokenized ``<^|user|>a <|end|>``

(``^`` for the guard). So nothing else about tokenizing changes. Rows without such names, nearly
all, go the direct way.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from titan_integration.data.encoding.marked_jinja import MARK
from titan_integration.data.formats.document import RowError

GUARD = "\ufdd1"  # As MARK, a code point that Unicode keeps out of texts.


class ControlTokens:
    """The control tokens of a tokenizer: its added tokens that are marked as special.

    Args:
        tokenizer: The tokenizer itself.
        plain: Names of added tokens that are not special, whatever ``tokenizer`` says.
    """

    def __init__(self, tokenizer: Tokenizer, plain: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self.names = {
            token.content: number
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content not in plain and len(token.content) > 1
        }
        longest_first = sorted(self.names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._beginnings = sorted({name[:2] for name in self.names})

    def occur_in(self, value: Any) -> bool:
        """Whether any text in ``value`` holds the name of a control token.

        Raises:
            RowError: It holds a character that Unicode keeps out of texts.
        """
        if isinstance(value, str):
            if MARK in value or GUARD in value:
                raise RowError("a text holds U+FDD0 or U+FDD1, which are no characters")
            for beginning in self._beginnings:
                if beginning in value:
                    return self._pattern.search(value) is not None
            return False
        if isinstance(value, dict):
            return any(map(self.occur_in, value)) or any(map(self.occur_in, value.values()))
        return isinstance(value, list) and any(map(self.occur_in, value))

    def guarded(self, value: Any, name: str | None = None) -> Any:
        """A copy of ``value`` in which these names are broken, or that of one token."""
        pattern = self._pattern if name is None else re.compile(re.escape(name))
        return _mapped(value, lambda text: pattern.sub(_broken, text))

    def names_in(self, value: Any) -> set[str]:
        """The control tokens that occur in ``value``."""
        return {name for text in _texts(value) for name in self._pattern.findall(text)}

    def tokenizable(self, text: str) -> tuple[str, np.ndarray, np.ndarray]:
        """A guarded text as the copy of the tokenizer takes it, and how positions move.

        Returns:
            The text; and ``int64[n]`` positions with the characters added after each of them.
        """
        pattern = re.compile(f"{GUARD}|{self._pattern.pattern}")
        moves: list[tuple[int, int]] = []

        def swap(found: re.Match[str]) -> str:
            if found[0] == GUARD:
                moves.append((found.start(), -1))
                return ""
            moves.append((found.start(), 1))
            return _broken(found)

        swapped = pattern.sub(swap, text)
        at, added = np.array(moves, np.int64).reshape(-1, 2).T
        return swapped, at, added

    @cached_property
    def copy(self) -> Tokenizer:
        """The tokenizer whose control tokens have broken names."""
        content = json.loads(self._tokenizer.to_str())
        for token in content["added_tokens"]:
            if token["content"] in self.names:
                token["content"] = _break(token["content"])
        return Tokenizer.from_str(json.dumps(content))

    @cached_property
    def ids(self) -> Mapping[int, int]:
        """Ids of the copy's control tokens -> those of the tokenizer."""
        found = {self.copy.token_to_id(_break(name)): number for name, number in self.names.items()}
        return {copied: number for copied, number in found.items() if copied is not None}


def _break(name: str) -> str:
    return f"{name[0]}{GUARD}{name[1:]}"


def _broken(found: re.Match[str]) -> str:
    return _break(found[0])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return value

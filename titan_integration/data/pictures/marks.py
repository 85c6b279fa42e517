"""Where pictures stand in a conversation: a mark in its texts, numbered over the conversation.

Formats write ``MARK`` once per picture; :func:`numbered` makes it ``MARK 0 MARK``, ``MARK 1 MARK``
and so on, which goes through any chat template as a word does. So the text that the template wrote
says which pictures are in it, also where it leaves turns out.
"""

import re
from collections.abc import Callable

MARK = "\ufdd2"  # a code point that Unicode keeps out of texts; rows that hold it are refused
# What stands for a picture in the texts of the usual picture datasets.
PLACEHOLDERS = ("<image>", "<IMG_CONTEXT>")
_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS)))
_NUMBERED = re.compile(f"{MARK}(\\d+){MARK}")


def marked(text: str) -> str:
    """The text with a mark for each placeholder."""
    return _PLACEHOLDER.sub(MARK, text) if "<" in text else text


def count(text: str) -> int:
    """Placeholders in a text."""
    return len(_PLACEHOLDER.findall(text)) if "<" in text else 0


def numbered(text: str, first: int) -> str:
    """The text with its marks numbered from ``first``."""
    parts = text.split(MARK)
    return parts[0] + "".join(
        f"{MARK}{number}{MARK}{part}" for number, part in enumerate(parts[1:], first)
    )


def numbers_in(text: str) -> list[int]:
    """The pictures of a text with numbered marks, in order."""
    return [int(number) for number in _NUMBERED.findall(text)]


def replaced(
    text: str, spans: tuple[tuple[int, int], ...], word: str
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text with ``word`` for each numbered mark, and where spans of it have moved to.

    Worked example: ``word`` of 3 characters in place of a mark of 3 moves nothing; of 5, what
    comes after moves by 2.
    """
    moves: list[tuple[int, int]] = []

    def swap(found: re.Match[str]) -> str:
        moves.append((found.start(), len(word) - len(found[0])))
        return word

    changed = _NUMBERED.sub(swap, text)
    moved: Callable[[int], int] = lambda at: at + sum(by for where, by in moves if where < at)  # noqa: E731
    return changed, tuple((moved(begin), moved(end)) for begin, end in spans)

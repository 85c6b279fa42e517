"""Which picture goes to which place of a conversation."""

from collections.abc import Sequence
from typing import Any

from titan_integration.data.pictures.marks import MARK, PLACEHOLDERS, count, numbered
from titan_integration.data.pictures.problem import PictureProblem

Message = dict[str, Any]


def listed(column: Any) -> list[Any]:
    """What a column of pictures holds: none, one or several."""
    if column is None or column == "" or column == []:
        return []
    return column if isinstance(column, list) else [column]


def captioned(text: str) -> list[Message]:
    """A picture's text as the answer to it."""
    return [{"role": "user", "content": ""}, {"role": "assistant", "content": text}]


def in_front(messages: Sequence[Message], number: int) -> list[Message]:
    """The conversation with places for so many pictures before its first question."""
    at = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    first = {**messages[at], "content": MARK * number + messages[at]["content"]}
    return [*messages[:at], first, *messages[at + 1 :]]


def filled(
    pictures: Sequence[Any], column: list[Any], messages: Sequence[Message]
) -> tuple[Any, ...]:
    """A picture for each place: the column's, in order, for those that name none.

    Args:
        pictures: What each place names; None where it names none.
        column: Pictures of the row's column.
        messages: For what is said where the numbers differ.

    Raises:
        PictureProblem: There are not as many places as pictures.
    """
    unnamed = sum(picture is None for picture in pictures)
    if column and not unnamed and len(column) == len(pictures):
        return tuple(column)  # named twice: the column has what is to be read
    if unnamed != len(column):
        raise PictureProblem(
            "not as many places as pictures", _unequal(unnamed, len(column), messages)
        )
    waiting = iter(column)
    return tuple(next(waiting) if picture is None else picture for picture in pictures)


def with_numbers(messages: Sequence[Message]) -> list[Message]:
    """The conversation with its marks numbered from 0."""
    done, number = [], 0
    for message in messages:
        content = message["content"]
        done.append({**message, "content": numbered(content, number)})
        number += content.count(MARK)
    return done


def _unequal(places: int, pictures: int, messages: Sequence[Message]) -> str:
    answers = sum(count(m["content"]) for m in messages if m["role"] == "assistant")
    message = (
        f"the row has {places} places for pictures (as {PLACEHOLDERS[0]}) and {pictures} pictures, "
        "of which there must be as many"
    )
    if answers and pictures == places + answers:
        return f"{message}; {answers} more are in answers, which must be text"
    if not pictures:
        return f"{message}; if it is only a word, write it otherwise"
    return message

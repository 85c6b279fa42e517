"""What every format gives, and what it says where a row gives nothing to train on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from titan_integration.errors import UserError

Message = dict[str, Any]
Preference = Literal["refuse", "chosen"]


class RowError(ValueError):
    """A row that cannot be trained on; ``reason`` is short and without content, for counting."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message or reason)
        self.reason = reason


class Refused(RowError, UserError):
    """A row that stops the run until a person decides: what it asks for is never guessed."""


class BadPicture(Refused):
    """A row whose pictures are not as they must be."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(
            reason, f"{message or reason}; or leave such rows out by --data.odb.on_error skip"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How rows are to be read, as the ``data`` section says.

    Attributes:
        form: The name of a format; "auto" decides for every row by its keys.
        columns: Standard name -> the rows' own name of a column.
        roles: The rows' own name of a role -> the chat template's.
        preference: What happens to rows that tell good answers from bad ones.
        pictures: Whether the model takes pictures.
    """

    form: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    preference: Preference = "refuse"
    pictures: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A row in the one form the encoder takes: a conversation, plain text, or tokens.

    Attributes:
        messages: In the shape that chat templates read, contents as strings. Where a picture
            belongs there is a mark with its number; see ``pictures.marks``.
        pictures: What the row calls its pictures, by number.
        untrained: Indices of messages that are answers, but not to be trained on.
        tools: Tool descriptions, handed to the chat template.
        text: Plain text, all of it trained on.
        tokens: Token ids, and the label of each or -100, as ``transformers`` keeps them.
        unread: Names of columns and message keys that the format did not read.
    """

    messages: list[Message] = field(default_factory=list)
    untrained: frozenset[int] = frozenset()
    pictures: tuple[Any, ...] = ()
    tools: list[Any] | None = None
    text: str | None = None
    tokens: tuple[Sequence[int], Sequence[int]] | None = None
    unread: frozenset[str] = frozenset()

    @property
    def answers(self) -> list[int]:
        """Indices of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

"""What is wrong with a picture."""

from typing import Any


class PictureError(ValueError):
    """A picture cannot be used.

    Attributes:
        reason: Short and without names, to count by: "truncated", "not an image", ...
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are made again from their args, which are the message alone.
        return type(self), (self.reason, str(self)), self.__dict__

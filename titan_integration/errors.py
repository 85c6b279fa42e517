"""The errors that a person, not a program, has to act on, and the end that was asked for."""


class UserError(ValueError):
    """Bad input: reported as one line on stderr with exit code 2, before any training."""


class Stopped(Exception):
    """The run was saved and ended because someone asked for it.

    Attributes:
        code: Of the process's end, 128 + signal.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

"""The one error that a person, not a program, has to act on."""


class UserError(ValueError):
    """Bad input: reported as one line on stderr with exit code 2, before any training."""

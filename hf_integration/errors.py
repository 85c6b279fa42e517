"""The one error that a person, not a program, has to act on."""


class Refusal(ValueError):
    """A setting that cannot be had together with online dynamic batching; one line, with remedy."""

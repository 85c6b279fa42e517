"""What is wrong with a row's pictures."""


class PictureProblem(ValueError):
    """Pictures of a row are not as they must be; ``reason`` is short and without content."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

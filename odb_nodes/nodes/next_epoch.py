"""The epoch that a view begins next, the same for views of samplers and of streams."""

from odb_nodes.arguments import integer


class NextEpoch:
    """What a view is told of epochs between its passes.

    Example: after ``set_epoch(5)`` a ``reset()`` begins epoch 5; a ``reset(state)`` goes on in the
    epoch of the state.
    """

    _next_epoch: int

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``reset`` without a state start ``epoch``; a restored state wins.

        Raises:
            ValueError: ``epoch`` is not an integer of at least 0.
        """
        self._next_epoch = integer("epoch", epoch, least=0)

    @property
    def next_epoch(self) -> int:
        """The pass that the next ``reset`` without a state begins."""
        return self._next_epoch

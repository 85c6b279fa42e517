"""The states of all ranks as one value, for checkpoint libraries that keep rank 0's alone."""

import base64
from typing import Any

from odb_nodes.errors import StateError
from odb_nodes.loader import OdbLoader
from odb_nodes.protocol.transport import gather
from odb_nodes.state.codec import pack_states, unpack_states
from odb_nodes.state.description import describe_state
from odb_nodes.state.reshard import reshard_states


class SharedState:
    """Keeps an ``OdbLoader`` in any checkpoint, and loads it into any number of ranks.

    ``state_dict`` returns the same value on every rank, ``{"odb": text}``: the blob of
    ``pack_states`` in base64. Plain text rather than bytes, which ``torch.load`` refuses with
    ``weights_only=True``, and rather than a tensor, which ``torch.distributed.checkpoint`` loads
    only into one of equal size. It fits ``accelerator.register_for_checkpointing(shared)``, an
    entry of ``torch.save``, a ``Stateful`` of ``torch.distributed.checkpoint`` and DeepSpeed's
    ``client_state``.

        shared = SharedState(loader)
        torch.save({"model": ..., "data": shared.state_dict()}, path)     # on every rank
        shared.load_state_dict(torch.load(path, weights_only=True)["data"])
        for epoch in range(shared.epoch, num_epochs):
            for batch in loader: ...

    Args:
        loader: Of this rank.
        process_group: Of exactly the loader's ranks, any but the one that it exchanges over; None
            is the default group.
    Attributes:
        epoch: The epoch that the next ``iter(loader)`` gives or continues, after loading; 0 before.
    """

    KEY = "odb"

    def __init__(self, loader: OdbLoader, process_group: Any = None) -> None:
        self.loader = loader
        self.epoch = 0
        self._group = process_group

    def state_dict(self) -> dict[str, str]:
        """After the batches returned last. Every rank must call this, in its main thread.

        Raises:
            ValueError: ``process_group`` is not of the loader's ranks.
        """
        transport = self.loader.align.transport
        state = self.loader.state_dict()
        states = [state]
        if transport.world_size > 1:
            states = gather(state, self._group)
        if len(states) != transport.world_size:
            raise ValueError(
                f"process_group must have the loader's {transport.world_size} ranks, got "
                f"{len(states)}; pass a group of the data-parallel ranks"
            )
        return {self.KEY: base64.b64encode(pack_states(states)).decode("ascii")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there at the next ``iter(loader)``; the world size may be another.

        Raises:
            StateError: Not the value of a ``SharedState``, damaged, or of other data or order.
        """
        states = self._unpack(state_dict)
        told = [describe_state(state) for state in states]
        transport = self.loader.align.transport
        if len(states) != transport.world_size:
            states = reshard_states(states, transport.world_size)
        self.loader.load_state_dict(states[transport.rank])
        finished = all(state["remaining"] == 0 for state in told)
        self.epoch = told[0]["epoch"] + finished

    def _unpack(self, state_dict: dict[str, Any]) -> list[Any]:
        try:
            blob = base64.b64decode(state_dict[self.KEY], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state_dict of a SharedState: {error!r:.100}") from None
        return unpack_states(blob)

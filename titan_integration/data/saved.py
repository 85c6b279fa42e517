"""What a checkpoint holds of the data: states of all ranks, counts, and what it was made from."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from odb_nodes import StateError, unpack_states
from titan_integration.data.fingerprints import Inputs
from titan_integration.data.totals import Totals
from titan_integration.errors import UserError

NEW_DATA_REMEDY = (
    "undo the change, train to another --dump_folder, or begin the data anew with "
    "--checkpoint.exclude_from_loading dataloader"
)


@dataclass(kw_only=True, slots=True)
class Saved:
    """The data's part of a checkpoint; counts and inputs are JSON there, beside the states.

    Attributes:
        states: One per rank.
        totals: Counts of all ranks.
        past_samples: Samples of all whole epochs, dropped ones included; None in old checkpoints.
        inputs: What the samples were made from; None in old checkpoints and of streams.
    """

    states: list[dict[str, Any]]
    totals: Totals
    past_samples: int | None
    inputs: Inputs | None

    def to_bytes(self) -> bytes:
        """All but the states."""
        told: dict[str, Any] = {**asdict(self.totals), "past_rows": self.past_samples}
        if self.inputs is not None:
            told["inputs"] = asdict(self.inputs)
        return json.dumps(told).encode()

    @classmethod
    def read(cls, states: bytes, rest: bytes) -> "Saved":
        """Undo ``pack_states`` and :meth:`to_bytes`. Raises StateError on damaged states."""
        told = json.loads(rest)
        past, inputs = told.pop("past_rows", None), told.pop("inputs", None)
        return cls(
            states=unpack_states(states),
            totals=Totals(**told),
            past_samples=past,
            inputs=None if inputs is None else Inputs(**inputs),
        )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn a state that does not fit into something a person can act on."""
    try:
        yield
    except StateError as error:
        raise UserError(f"the checkpoint does not fit: {error}; {NEW_DATA_REMEDY}") from error

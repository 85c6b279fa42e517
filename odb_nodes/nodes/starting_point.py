"""What the ranks of a loader must have alike before a pass begins, and how a mismatch is told."""

import hashlib
import logging
from typing import Any

from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.protocol.agreement import Agreement
from odb_nodes.protocol.settings import Alignment
from odb_nodes.protocol.transport import Transport
from odb_nodes.state.schema import OrderSettings, Refs

logger = logging.getLogger(__name__)


class StartingPoint:
    """Settings and data of one rank, as the others must have them too.

    Args:
        source: The samples of this rank.
        alignment: How the ranks keep in step.
        transport: Between the ranks.
    Raises:
        ValueError: The data is dealt out to other ranks than those of the transport.
    """

    def __init__(self, source: GroupingNode, alignment: Alignment, transport: Transport) -> None:
        self._transport = transport
        self._reshuffles = getattr(source.view, "reshuffles", True)
        self.order_settings: OrderSettings = {
            "budget": source.describe(),
            "window": source.window_size,
            "policy": alignment.policy,
            "steps_per_round": alignment.steps_per_round,
        }
        view = source.view
        _check_share(view, transport)
        data = view.describe() if hasattr(view, "describe") else {}
        samples = {"samples are saved": source.sample_refs.kind}
        self._agreed = Agreement(
            settings={**self.order_settings, **alignment.describe(), **samples, **data}
        )

    def agreement(self, epoch: int, step: int) -> Agreement:
        """What must be equal on all ranks at this place."""
        agreed = self._agreed
        return Agreement(
            settings=agreed.settings, settings_key=agreed.settings_key, epoch=epoch, step=step
        )

    def order_epoch(self, epoch: int) -> int:
        """What makes the order of steps differ between epochs.

        Where the data comes in the same order every time, so do the steps.
        """
        return epoch if self._reshuffles else 0

    def compare_streams(self, refs: Refs) -> None:
        """Warn if all ranks read the same samples, as they do where nobody split a stream.

        All ranks of a stream call this after the first round of a pass.

        Args:
            refs: The samples of the round.
        """
        if isinstance(refs, bytes) or self._transport.world_size == 1:
            return
        # A rank that has no samples yet has something else to show than the others.
        shown = b"".join(refs) or b"rank %d" % self._transport.rank
        key = int.from_bytes(hashlib.blake2b(shown, digest_size=7).digest(), "little")
        high, low = self._transport.all_max([key, -key], "comparing streams")
        if high == -low:
            logger.warning(
                "all ranks read the same samples, so each will be trained on %d times: give every "
                "rank its own part of the stream (odb_loader(split=...), or datasets' "
                "split_dataset_by_node)",
                self._transport.world_size,
            )

    def say_what_changed(self, saved: OrderSettings) -> None:
        """Tell once that a state was saved under other settings."""
        if saved == self.order_settings:
            return
        logger.log(
            logging.WARNING if self._transport.rank == 0 else logging.DEBUG,
            "settings changed since the state was saved, from %s to %s: no sample is lost or "
            "repeated, but the order of what is left is another",
            saved,
            self.order_settings,
        )


def _check_share(view: Any, transport: Transport) -> None:
    """The view must be dealt out among exactly the ranks that exchange."""
    here = (transport.rank, transport.world_size)
    share = (getattr(view, "rank", here[0]), getattr(view, "world_size", here[1]))
    if share != here:
        raise ValueError(
            f"the exchange has rank {here[0]} of {here[1]}, the view is of rank={share[0]}, "
            f"world_size={share[1]}: they must be the same"
        )

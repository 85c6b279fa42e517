"""The end of a pass: was each sample emitted or dropped once, and was there any."""

import logging

from odb_nodes.errors import CoverageError
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.state.counters import Counters

logger = logging.getLogger(__name__)


def check_coverage(source: GroupingNode, counters: Counters, rank: int) -> None:
    """Check a joined pass that has ended on all ranks.

    Raises:
        CoverageError: This rank did not emit or drop exactly what it was to read.
    """
    if source.missing_digest(counters.digest):
        raise CoverageError(
            f"rank {rank}, epoch {source.epoch}: {counters.emitted} samples emitted and "
            f"{sum(source.all_drops().values())} dropped are not this rank's views, each once: do "
            "the states loaded on the ranks belong together?"
        )


def say_if_empty(source: GroupingNode, counters: Counters) -> None:
    """Warn of a pass in which no rank emitted anything."""
    if counters.total_emitted:
        return
    drops = source.all_drops()
    logger.warning(
        "epoch %d is empty on all ranks: this rank read %s",
        source.epoch,
        f"samples and dropped all of them: {drops}" if drops else "nothing",
    )

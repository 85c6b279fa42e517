"""For tests of graphs and transports: worlds of several ranks inside one process.

May import everything of ``odb_nodes``; nothing else of the library imports it.
"""

from odb_nodes.testing.conformance import check_collectives
from odb_nodes.testing.world import InProcessTransport, InProcessWorld

__all__ = ["InProcessTransport", "InProcessWorld", "check_collectives"]

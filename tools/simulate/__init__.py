"""Simulate the alignment protocol on many ranks: the real pure functions, no tensors, no network.

May import the pure parts of ``odb_nodes`` and ``tools.data``.
"""

from tools.simulate.table import main
from tools.simulate.world import REPORT_BYTES, TOTAL_BYTES, Result, Setting, deal, simulate

__all__ = ["REPORT_BYTES", "TOTAL_BYTES", "Result", "Setting", "deal", "main", "simulate"]

"""All that a run reads as one table: paths, held-out rows, mixtures of sources; and streams.

May import ``titan_integration.data.sources`` and ``odb_nodes``.
"""

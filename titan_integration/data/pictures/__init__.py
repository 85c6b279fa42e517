"""Pictures of rows: where they stand in the texts, where their bytes are, and their tokens.

May import ``odb_nodes.vision`` and ``titan_integration.errors``; no table, format or encoder.
"""

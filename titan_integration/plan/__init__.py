"""``odb-plan``: what a run on these rows will look like, before it is started.

Simulates ways to batch on sampled lengths with the real pure functions of ``odb_nodes``. May
import ``titan_integration.data`` and everything below it; nothing of the trainer.
"""

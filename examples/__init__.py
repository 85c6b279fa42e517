"""Recipes for other training loops: each runs as it is, and a test trains with each.

May import ``odb_nodes`` and ``tools.train_ddp``, whose model and rows they share.
"""

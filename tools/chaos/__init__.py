"""Runs of the training command in which everything goes wrong, and what is left of them.

May import everything; nothing imports this but tests.
"""

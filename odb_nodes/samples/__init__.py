"""Samples on their way: prepared from a view, buffered, and settled into the steps of a round.

Knows tensors and user code, but no torchdata and no other ranks. May import ``state``.
"""

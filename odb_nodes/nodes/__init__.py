"""The torchdata nodes: they hold state and threads, and call the pure parts for every decision.

May import ``batching``, ``protocol`` and ``state``. Everything taken from torchdata itself, its
private attributes included, comes through ``upstream``.
"""

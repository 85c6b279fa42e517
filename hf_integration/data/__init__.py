"""From dataset rows to the batches of one optimizer step, and their place in a checkpoint.

May import ``arguments``, ``errors`` and ``upstream``, and nothing of ``training``.
"""

"""Reading every row before training: what is found, kept for the next run, and said.

May import ``titan_integration.data``'s ``encoding``, ``formats`` and ``sources``.
"""

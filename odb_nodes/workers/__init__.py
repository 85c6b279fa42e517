"""Threads and processes that run the user's code on samples, in order and ahead of their consumer.

Knows chunks of items and a task that maps one item; not views, samples or nodes. May import
``errors`` only.
"""

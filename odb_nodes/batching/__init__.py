"""Which samples form a batch: budgets, the window, and how groups are cut from it. Pure.

Knows lengths, ages and costs, never content: no torch, no communication, no state format. May
import ``errors`` and ``types`` only.
"""

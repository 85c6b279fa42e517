"""Data that the other tools work on: a corpus from installed docstrings, length workloads."""

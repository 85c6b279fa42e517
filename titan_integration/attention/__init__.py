"""Attention for machines on which flex and varlen attention cannot train: densely, or by document.

May import ``upstream`` only.
"""

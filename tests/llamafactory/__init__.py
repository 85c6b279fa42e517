"""Runs of LLaMA-Factory in an environment of its own: ``make llamafactory``."""

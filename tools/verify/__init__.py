"""The model checker: every small world of ranks, run through the real pure functions."""

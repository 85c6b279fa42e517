"""The measurements: each module runs one section of the benchmark and returns rows of results."""

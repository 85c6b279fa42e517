"""One benchmark for every way to batch: ``python -m tools.bench`` (or ``make bench``)."""

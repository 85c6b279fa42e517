"""Command-line tools around the two packages; run them from the repository root."""

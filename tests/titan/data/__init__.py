"""Rows, formats, encoding and checks, without a trainer."""

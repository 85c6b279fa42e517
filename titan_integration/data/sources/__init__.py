"""Tables of rows, and what all kinds of them share: files, fingerprints, a cache, byte spans.

May import ``titan_integration.errors``; knows no format of rows, no tokenizer, no other rank.
"""

"""One file, folder or dataset as a table of rows: one module per kind, told apart by content.

A new kind is a module with a ``Kind`` and its entry in ``registry.KINDS``. May import
``titan_integration.errors``; knows no format of rows, no tokenizer, no other rank.
"""

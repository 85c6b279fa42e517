"""One module per kind of file or dataset, told apart by content; ``registry`` lists them.

A new kind is a module with a ``Kind`` and its entry in ``registry.KINDS``. May import
``titan_integration.data.sources`` and ``titan_integration.errors``.
"""

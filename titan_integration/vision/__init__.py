"""Vision towers and linear attention that cost what their pictures and documents cost, anywhere.

May import ``upstream`` and ``titan_integration.attention`` only. Each model family has a module of
its own, as importing a family may need a package that the others do not.
"""

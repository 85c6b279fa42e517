"""Training configurations, chosen by ``--module configs.X --config NAME``.

An installed wheel has them as ``titan_integration.configs``; the modules here therefore import each
other relatively. May import ``odb_nodes`` and ``titan_integration``.
"""

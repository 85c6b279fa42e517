"""Training configurations, chosen by ``--module configs.X --config NAME``."""

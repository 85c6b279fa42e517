"""torchtitan with online dynamic batching: entry point, data, trainer, schedule, metrics."""

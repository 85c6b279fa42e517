"""Driving torchtitan's trainer: exact loss, schedules, metrics, validation, what is refused.

May import ``titan_integration.data`` and everything below it.
"""

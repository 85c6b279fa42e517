"""What joins the data to the Trainer's loop: loss, schedule, progress, metrics, what is refused.

May import ``hf_integration.data`` and everything below it.
"""

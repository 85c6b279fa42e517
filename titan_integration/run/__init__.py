"""What surrounds a run: its command line, logs, lock, checkpoint folder, stopping and failing.

Knows processes, files and signals, and nothing of models or batches. May import ``errors``,
``process_groups`` and ``upstream``, and ``odb_nodes`` to read a checkpoint's states.
"""

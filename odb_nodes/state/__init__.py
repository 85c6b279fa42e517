"""What a checkpoint holds: schema, codecs, cursors, counters, drops, resharding, description.

States are plain values that are checked field by field before anything changes; nothing here runs
what it reads. May import ``errors`` and ``types`` only.
"""

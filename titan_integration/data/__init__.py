"""Reading rows and turning them into batches: files, formats, encoding, checks, the dataloader.

Knows torchtitan's tokenizer and its dataloader interface through ``titan_integration.upstream``,
and nothing of the trainer. May import ``odb_nodes``, ``errors`` and ``process_groups``.
"""

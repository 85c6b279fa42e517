"""Rows -> tokens and what of them is trained on: templates, answers, tokenizing, the encoder.

Knows torchtitan's tokenizer and no other part of it. May import ``formats``, ``upstream`` and
``errors``.
"""

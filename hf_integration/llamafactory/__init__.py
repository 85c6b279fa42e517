"""LLaMA-Factory's training with online dynamic batching; ``__main__`` is the command.

May import everything else of ``hf_integration``; ``llamafactory`` is imported when it runs.
"""

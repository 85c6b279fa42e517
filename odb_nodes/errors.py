"""The library's own exceptions; bad arguments are ``ValueError``."""


class StateError(ValueError):
    """A saved state cannot be used here: damaged, of another version, or of other data."""


class SampleError(RuntimeError):
    """A sample breaks the contract of the pipeline, e.g. it has no usable length."""


class CoverageError(RuntimeError):
    """A joined epoch ended without having emitted exactly its own views."""


class PeerFailedError(RuntimeError):
    """Another rank failed, left, or did not answer in time."""


class WorkerDiedError(RuntimeError):
    """A worker process that runs dataset and transform is gone: killed, or out of memory."""

"""How ranks agree: pure policies and facts, the exchange, and the transports beneath it.

May import ``batching`` and ``state``. ``transport`` is the only module of the library that talks
to other ranks; the policies compute what is decided from exchanged facts alone.
"""

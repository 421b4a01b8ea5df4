"""SASL, as Kafka's clients and brokers speak it: the messages of each mechanism, and their proofs.

Nothing in here has a socket, a clock or randomness: nonces are arguments. Brokers and clients use
the same grammar.
"""

from __future__ import annotations


class SaslError(ValueError):
    """A message of the other side is no valid one, or proves nothing. The text has no secret."""

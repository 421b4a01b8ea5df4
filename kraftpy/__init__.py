"""kraftpy: a durable message broker that speaks the Kafka wire protocol.

Importing the package costs nothing: the broker (`kraftpy.server`), the client (`kraftpy.client`),
the command line (`kraftpy.cli`) and the pytest plugin (`kraftpy.testing`) are imported by whoever
uses them.
"""

from __future__ import annotations

__version__ = "0.1.0"

"""kraftpy: a durable message broker that speaks the Kafka wire protocol.

Importing the package costs nothing: the broker (`kraftpy.server`), the client (`kraftpy.client`),
the command line (`kraftpy.cli`) and the pytest plugin (`kraftpy.testing`) are imported by whoever
uses them.
"""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("kraftpy")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

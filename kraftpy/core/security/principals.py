"""Principals: as whom a client does what it does.

Kafka's form is `Type:name`. Clients are of the type `User`; one that doesn't say who it is
is `User:ANONYMOUS` (KIP-12).
"""

from __future__ import annotations

from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """Somebody who may be allowed something."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")

"""Principals: as whom a client does what it does.

Kafka's form is `Type:name`. Clients are of the type `User`; one that doesn't say who it is
is `User:ANONYMOUS` (KIP-12). `Broker:<id>` is another broker of the cluster, `Page:metrics` what
asks for what nodes show; no mechanism that clients use makes those types.
"""

from __future__ import annotations

from kraftpy.frozen import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """Somebody who may be allowed something."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


def parsed(text: str) -> Principal:
    """The principal that is written so; of no type if there is no colon."""
    kind, colon, name = text.partition(":")
    return Principal(kind, name) if colon else Principal("", text)


ANONYMOUS = Principal(USER, "ANONYMOUS")

BROKER = "Broker"
"""The type of brokers. No mechanism that users log in by makes a principal of it."""

PAGE = "Page"
"""The type of what asks for a node's page and metrics; of the same kind."""

BROKER_USER_PREFIX = "__broker_"
"""A broker without a credential of its own logs in under this name and its id."""


def reserved(name: str) -> bool:
    """Whether a user of this name would be taken for everybody, for nobody or for a broker."""
    return name in ("*", ANONYMOUS.name) or name.startswith(BROKER_USER_PREFIX)


def is_user(text: str) -> bool:
    """Whether the principal that is written so is one user's alone."""
    kind, name = parsed(text)
    return kind == USER and bool(name) and not reserved(name)

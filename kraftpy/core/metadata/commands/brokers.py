"""Commands on brokers; `broker_commands` carries them out and has their rules.

register_broker        broker_id, incarnation_id (16 bytes), endpoints [{listener, host, port,
                       security_protocol}], directories [16 bytes], previous_broker_epoch?,
                       cluster_id?, rack?, min_insync_replicas?, unclean_leader_election?,
                       registered_ms?, metrics?
                                                          -> {broker_epoch}
unregister_broker      broker_id                          -> {}
fence_broker           broker_id, broker_epoch            -> {}
unfence_broker         broker_id, broker_epoch            -> {}
begin_shutdown         broker_id, broker_epoch            -> {remaining}
allocate_producer_ids  broker_id, broker_epoch            -> {first, count}
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.core.fields import INT_MAX, LONG_MAX, AtMost, Int32, Int64, Length, Range, Uuid
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command, Since
from kraftpy.core.metadata.levels import REGISTRY
from kraftpy.core.metadata.records import Endpoint
from kraftpy.frozen import dataclass

ENDPOINTS_MAX = 16
DIRECTORIES_MAX = 64
TEXT_LENGTH_MAX = 255

ShortText = Annotated[str, Length(TEXT_LENGTH_MAX)]


@dataclass(frozen=True, slots=True)
class RegisterBroker(Command):
    """Admits one life of a broker.

    `previous_broker_epoch` is what the clean-shutdown marker says, -1 if there is none.
    `min_insync_replicas` and `unclean_leader_election` are what the broker's own configuration file
    says. `registered_ms` is its clock, `metrics` where the metrics of its node are served.
    """

    NAME = "register_broker"

    broker_id: Int32
    incarnation_id: Uuid
    endpoints: Annotated[tuple[Endpoint, ...], AtMost(ENDPOINTS_MAX)]
    directories: Annotated[tuple[Uuid, ...], AtMost(DIRECTORIES_MAX)]
    previous_broker_epoch: Annotated[int, Range(-1, LONG_MAX)] = -1
    cluster_id: ShortText | None = None
    rack: ShortText | None = None
    min_insync_replicas: Annotated[int, Range(1, INT_MAX)] = 1
    unclean_leader_election: bool = False
    registered_ms: Annotated[int, Range(0, LONG_MAX), Since(REGISTRY)] = 0
    metrics: Annotated[ShortText | None, Since(REGISTRY)] = None


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Command):
    """Forgets a broker."""

    NAME = "unregister_broker"

    broker_id: Int32
    allowed_under: AllowedUnder = None


@dataclass(frozen=True, slots=True)
class OfBroker(Command):
    """A command about, or by, one life of a broker."""

    broker_id: Int32
    broker_epoch: Int64


@dataclass(frozen=True, slots=True)
class FenceBroker(OfBroker):
    """Takes a broker's leaderships from it."""

    NAME = "fence_broker"


@dataclass(frozen=True, slots=True)
class UnfenceBroker(OfBroker):
    """Lets a broker serve."""

    NAME = "unfence_broker"


@dataclass(frozen=True, slots=True)
class BeginShutdown(OfBroker):
    """Moves what a broker leads to others before it stops."""

    NAME = "begin_shutdown"


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(OfBroker):
    """Gives a broker a block of producer ids."""

    NAME = "allocate_producer_ids"

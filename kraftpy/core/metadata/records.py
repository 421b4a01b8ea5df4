"""What the metadata consists of, and what a command did to it.

Brokers, partition states and changes are immutable: a reader may keep one, and a change is a new
object in the old one's place. Replica sets are tuples in their own order (the first replica is the
preferred leader).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import field
from enum import IntEnum
from typing import Annotated, Any

from kraftpy.core.fields import Length, Range
from kraftpy.core.quotas import Entity
from kraftpy.core.security.acls import Acl
from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.protocol.errors import ErrorCode

NO_LEADER = -1

UNASSIGNED_DIRECTORY = bytes(16)
"""The replica's broker has several log dirs and has yet to choose one (KIP-858)."""

LOST_DIRECTORY = bytes(15) + b"\1"
"""The directory that had the replica is gone, and with it what the replica had (KIP-858)."""

_ShortText = Annotated[str, Length(255)]

OFFSETS_TOPIC = "__consumer_offsets"

INDIVIDUAL_OFFSETS_TOPIC = "__individual_commit_offsets"
"""Its twin."""

SHARE_STATE_TOPIC = "__share_group_state"

INTERNAL_TOPICS = frozenset(
    {OFFSETS_TOPIC, INDIVIDUAL_OFFSETS_TOPIC, "__transaction_state", SHARE_STATE_TOPIC}
)


class ResourceType(IntEnum):
    """What a configuration belongs to, as Kafka numbers it."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a broker. An empty host stands for the address that a client connected to."""

    listener: _ShortText
    host: _ShortText
    port: Annotated[int, Range(0, 65535)]
    security_protocol: _ShortText


class ScramMechanism(IntEnum):
    """The mechanisms that credentials are for, as Kafka numbers them (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def wire_name(self) -> str:
        """Its name in SASL."""
        return self.name.replace("_", "-")


SCRAM_KEY_BYTES = {ScramMechanism.SCRAM_SHA_256: 32, ScramMechanism.SCRAM_SHA_512: 64}
"""The size of a key, which is that of the hash."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker has of a user's password (RFC 5802); see `security_commands`."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token that logs in as its owner (KIP-48); see `token_commands`.

    What it logs in with isn't here: that is an HMAC of its id under a key of the brokers'. Who has
    asked for it is `requester`; principals are written `Type:name`.
    """

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def expired(self, now_ms: int) -> bool:
        """Whether it is over at this time."""
        return self.expires_ms < now_ms

    def renewed_by(self, principal: str) -> bool:
        """Whether this principal may renew and expire it."""
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: str) -> bool:
        """Whether this principal has it, has asked for it or may renew it."""
        return principal == self.requester or self.renewed_by(principal)


class TopicRules(NamedTuple):
    """What a configuration says on elections; `min_isr` is not bounded by the replicas."""

    min_isr: int = 1
    unclean: bool = False


KAFKAS_RULES = TopicRules()
"""Those of a configuration that says nothing."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker. `epoch` numbers the life of its process that `incarnation_id` names.

    A fenced one serves nothing. One in controlled shutdown is given no leaderships any more.
    `rules` are what its own configuration file says. `registered_ms` is when its life began by its
    clock, 0 if that isn't known, `metrics` the address of its node's metrics.
    """

    id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    directories: tuple[bytes, ...]
    fenced: bool
    in_controlled_shutdown: bool = False
    rules: TopicRules = KAFKAS_RULES
    registered_ms: int = 0
    metrics: str | None = None

    @property
    def active(self) -> bool:
        """Whether it can lead and be in sync."""
        return not (self.fenced or self.in_controlled_shutdown)


def common_rules(brokers: Iterable[Broker]) -> TopicRules:
    """The rules of a topic for which nothing is set in the replicated configuration.

    Brokers' files should agree on them. If they don't, the safe value counts: the lowest
    min.insync.replicas, because who leads a partition then asks for no less and commits nothing
    while an ISR is smaller; and an unclean election only if all permit it.
    """
    rules = [broker.rules for broker in brokers]
    return TopicRules(
        min_isr=min((each.min_isr for each in rules), default=1),
        unclean=bool(rules) and all(each.unclean for each in rules),
    )


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who has a partition and who leads it.

    Every change raises `partition_epoch`; a change of leader raises `leader_epoch`, and so does
    taking replicas away. `directories` has the log dir of each replica, in the order of `replicas`.
    `elr` are those out of sync that have all committed records (KIP-966), `last_known_elr` who led
    last if nobody leads. In a reassignment `replicas` has the old and the new ones, of which
    `adding` are not among the old and `removing` not among the new. See `elections`.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class Topic:
    """A topic. `partitions` has the indexes 0..n-1 in order; only `MetadataState` changes it.

    `twin_of` is the name of the topic that its partitions follow, if there is one (`twins`).
    """

    name: str
    id: bytes
    partitions: dict[int, PartitionState]
    twin_of: str | None = None

    @property
    def internal(self) -> bool:
        """Whether it belongs to the broker itself."""
        return self.name in INTERNAL_TOPICS


def name_in_metrics(name: str) -> str:
    """A topic's name as metrics have it; two topics may not have the same one."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """The topic is there, with all its partitions and its configuration."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic is gone, and its configuration with it. `topic` is what it was."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition of an existing topic has a new state; `old` is None if it is a new partition."""

    topic: Topic
    index: int
    old: PartitionState | None
    new: PartitionState


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The configuration of an existing resource changed; of brokers "" means all of them."""

    resource_type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker registered (`old` is None), left (`new` is None), or came into another state."""

    old: Broker | None
    new: Broker | None


@dataclass(frozen=True, slots=True)
class LevelRaised:
    """The metadata has reached a level; see `levels`."""

    level: int


@dataclass(frozen=True, slots=True)
class FeatureChanged:
    """A feature has another level (KIP-584); at 0 there is nothing of it."""

    name: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class ScramChanged:
    """A user has other SCRAM credentials; for the mechanisms in `deleted` none any more."""

    user: str
    deleted: tuple[ScramMechanism, ...] = ()


@dataclass(frozen=True, slots=True)
class AclsChanged:
    """There are other ACLs, and another version of them."""

    added: tuple[Acl, ...] = ()
    deleted: tuple[Acl, ...] = ()


@dataclass(frozen=True, slots=True)
class QuotasChanged:
    """These entities have other quotas, or none any more."""

    entities: tuple[Entity, ...]


@dataclass(frozen=True, slots=True)
class TokenChanged:
    """A delegation token is there (`old` is None), or has another end."""

    old: DelegationToken | None
    new: DelegationToken


@dataclass(frozen=True, slots=True)
class TokensRemoved:
    """These delegation tokens are gone."""

    tokens: tuple[DelegationToken, ...]


Change = (
    TopicCreated
    | TopicDeleted
    | PartitionChanged
    | ConfigChanged
    | BrokerChanged
    | LevelRaised
    | FeatureChanged
    | ScramChanged
    | AclsChanged
    | QuotasChanged
    | TokenChanged
    | TokensRemoved
)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a command.

    `error` other than NONE means that the command as a whole did nothing. Commands on several
    items answer each of them in `value`, which can be packed as msgpack; see `state` for its shape.
    `changes` lists what was changed, in order.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    value: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()

"""Access control lists: who may do what with which resource, and what finds them (KIP-11, KIP-290).

Rules:

* An ACL lets (ALLOW) or keeps (DENY) one principal from one address do one operation with the
  resources of a pattern. `*` stands for every address, and as the name of a LITERAL pattern for
  every resource; PREFIXED `*` is only the prefix that it looks like.
* Hosts are compared as addresses, so they are kept in one form (`address`); a name of a host, which
  Kafka takes and never matches, is refused.
* A filter whose pattern type is MATCH finds whatever would apply to the resource of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from ipaddress import IPv6Address, ip_address

from kraftpy.core.security.principals import Principal
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
"""The one resource of the type CLUSTER."""

NAME_LENGTH_MAX = 1024
"""Characters of a resource's name, a principal or a host in an ACL."""


class Resource(IntEnum):
    """The types of resources, by Kafka's numbers."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How a name means resources. ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What can be done with a resource. ANY is for filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


OPERATIONS: Mapping[Resource, tuple[Operation, ...]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    Resource.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    Resource.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""What there is to do with resources of a type, as KIP-430 tells it."""


class Permission(IntEnum):
    """What an ACL does. ANY is for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One ACL. `principal` is written `Type:name`, the numbers are those of the enums."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        pattern = "prefix " if self.pattern == Pattern.PREFIXED else ""
        return (
            f"{Permission(self.permission).name} {Operation(self.operation).name} on "
            f"{Resource(self.resource_type).name} {pattern}{self.name} to {self.principal} "
            f"from {self.host}"
        )


class AclFilter(NamedTuple):
    """Finds ACLs; None and the enums' ANY stand for whatever there is."""

    resource_type: int = Resource.ANY
    name: str | None = None
    pattern: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def exact(self) -> Acl | None:
        """The one ACL that it can find, None if there may be others."""
        if (
            self.resource_type == Resource.ANY
            or self.name is None
            or self.pattern not in (Pattern.LITERAL, Pattern.PREFIXED)
            or self.principal is None
            or self.host is None
            or self.operation == Operation.ANY
            or self.permission == Permission.ANY
        ):
            return None
        return Acl(*self)  # type: ignore[arg-type]

    def finds(self, acl: Acl) -> bool:
        """Whether it finds that one."""
        return (
            self.resource_type in (Resource.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._finds_pattern(acl.pattern, acl.name)
        )

    def _finds_pattern(self, pattern: int, name: str) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, pattern):
            return False
        if self.name is None or self.name == name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        if pattern == Pattern.PREFIXED:
            return self.name.startswith(name)
        return name == WILDCARD


def address(host: str) -> str:
    """An address in the form in which addresses are compared. Raises ValueError."""
    parsed = ip_address(host.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return str(parsed)


def new_acl(acl: Acl) -> Acl:
    """The ACL as it is kept. Raises KafkaError(INVALID_REQUEST) if there can't be such a one."""
    _check_kinds(acl, (Resource.ANY,), (Pattern.ANY, Pattern.MATCH), (Operation.ANY,))
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"an ACL has no permission type {acl.permission}")
    if not acl.name:
        raise _invalid("the resource's name is empty")
    if acl.resource_type == Resource.CLUSTER and acl.name != CLUSTER_NAME:
        raise _invalid(f"the only resource of the type CLUSTER is {CLUSTER_NAME}")
    _check_lengths(acl.name, acl.principal, acl.host)
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise _invalid(f"a principal is written Type:name, as User:alice, not {acl.principal!r}")
    return acl._replace(host=_host(acl.host))


def checked_filter(wanted: AclFilter) -> AclFilter:
    """The filter as it is used. Raises KafkaError(INVALID_REQUEST) if it makes no sense."""
    _check_kinds(wanted, (), (), ())
    if wanted.permission not in set(Permission):
        raise _invalid(f"there is no permission type {wanted.permission}")
    _check_lengths(wanted.name, wanted.principal, wanted.host)
    return wanted if wanted.host is None else wanted._replace(host=_host(wanted.host))


def _check_kinds(
    acl: Acl | AclFilter,
    no_resources: Iterable[int],
    no_patterns: Iterable[int],
    no_operations: Iterable[int],
) -> None:
    if acl.resource_type not in set(Resource).difference(no_resources):
        raise _invalid(f"there are no ACLs of the resource type {acl.resource_type}")
    if acl.pattern not in set(Pattern).difference(no_patterns):
        raise _invalid(f"there are no ACLs of the pattern type {acl.pattern}")
    if acl.operation not in set(Operation).difference(no_operations):
        raise _invalid(f"there are no ACLs of the operation {acl.operation}")


def _check_lengths(*texts: str | None) -> None:
    for text in texts:
        if text is not None and len(text) > NAME_LENGTH_MAX:
            raise _invalid(f"{text[:20]!r}... has more than {NAME_LENGTH_MAX} characters")


def _host(host: str) -> str:
    if host == WILDCARD:
        return host
    try:
        return address(host)
    except ValueError:
        raise _invalid(
            f"a host is an address, or * for all of them, not {host[:120]!r}: names of hosts would "
            "never match"
        ) from None


def _invalid(problem: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, problem)


def principals_in(setting: str) -> frozenset[Principal]:
    """The principals in `super.users`, split at `;`. Raises ValueError."""
    found = set()
    for each in filter(None, (part.strip() for part in setting.split(";"))):
        kind, colon, name = each.partition(":")
        if not (kind and colon and name):
            raise ValueError(
                f"a principal is written Type:name, as User:admin, and they are separated by "
                f"semicolons: {each!r} isn't one"
            )
        found.add(Principal(kind, name))
    return frozenset(found)

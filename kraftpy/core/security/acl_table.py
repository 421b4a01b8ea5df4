"""All ACLs of the cluster, and what they say of a resource: part of the replicated metadata.

Whose ACLs apply is looked up by principal and host, and there by resource: the work of a question
grows with the lengths that prefixes have, not with the number of ACLs, and a change costs what it
changes. Operations are bits here (`bit`), and sets of them masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kraftpy.core.security.acls import (
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
)

EVERYTHING = sum(1 << each for each in Operation if each > Operation.ALL)
"""All operations."""


def bit(operation: int) -> int:
    """The mask of one operation."""
    return EVERYTHING if operation == Operation.ALL else 1 << operation


_IMPLIED = {
    **dict.fromkeys(
        (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        bit(Operation.DESCRIBE),
    ),
    Operation.ALTER_CONFIGS: bit(Operation.DESCRIBE_CONFIGS),
}
"""What ALLOW of an operation allows, too; DENY of one denies nothing else."""


class _Prefixes:
    """Which of many prefixes a name has."""

    __slots__ = ("_counts", "_lengths")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._lengths: Sequence[int] = ()

    def add(self, prefix: str) -> None:
        self._counts[len(prefix)] += 1
        if self._counts[len(prefix)] == 1:
            self._lengths = sorted(self._counts)

    def remove(self, prefix: str) -> None:
        self._counts[len(prefix)] -= 1
        if not self._counts[len(prefix)]:
            del self._counts[len(prefix)]
            self._lengths = sorted(self._counts)

    def of(self, name: str) -> Iterator[str]:
        """The prefixes that the name could have, of the lengths that there are."""
        whole = len(name)
        for length in self._lengths:
            if length > whole:
                return
            yield name[:length]


class _Masks:
    """What the ACLs of one pattern allow and deny."""

    __slots__ = ("acls", "allowed", "denied")

    def __init__(self) -> None:
        self.acls: set[tuple[int, int]] = set()
        self.allowed = self.denied = 0

    def change(self, acl: Acl, *, there: bool) -> None:
        entry = acl.operation, acl.permission
        (self.acls.add if there else self.acls.discard)(entry)
        self.allowed = self.denied = 0
        for operation, permission in self.acls:
            if permission == Permission.ALLOW:
                self.allowed |= bit(operation) | _IMPLIED.get(Operation(operation), 0)
            else:
                self.denied |= bit(operation)


class Grants:
    """What the ACLs of one principal from one host, or `*`, say; of one type of resources."""

    __slots__ = ("_lengths", "_literal", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[str, _Masks] = {}
        self._prefixed: dict[str, _Masks] = {}
        self._lengths = _Prefixes()

    def change(self, acl: Acl, *, there: bool) -> None:
        """Takes an ACL in (`there`) or out."""
        prefixed = acl.pattern == Pattern.PREFIXED
        patterns = self._prefixed if prefixed else self._literal
        masks = patterns.get(acl.name)
        if masks is None:
            masks = patterns[acl.name] = _Masks()
            if prefixed:
                self._lengths.add(acl.name)
        masks.change(acl, there=there)
        if not masks.acls:
            del patterns[acl.name]
            if prefixed:
                self._lengths.remove(acl.name)

    def __bool__(self) -> bool:
        return bool(self._literal or self._prefixed)

    def of(self, name: str) -> Iterator[_Masks]:
        """What applies to the resource of that name."""
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            masks = self._literal.get(literal)
            if masks is not None:
                yield masks
        prefixed = self._prefixed
        if prefixed:
            for prefix in self._lengths.of(name):
                masks = prefixed.get(prefix)
                if masks is not None:
                    yield masks

    def masks(self) -> Iterator[_Masks]:
        """All that there are, whatever they apply to."""
        yield from self._literal.values()
        yield from self._prefixed.values()

    def patterns(self) -> Iterator[tuple[int, str, _Masks]]:
        """The same with the patterns."""
        for name, masks in self._literal.items():
            yield Pattern.LITERAL, name, masks
        for name, masks in self._prefixed.items():
            yield Pattern.PREFIXED, name, masks


class AclTable:
    """The ACLs; `version` is the index of the command that changed them last."""

    def __init__(self) -> None:
        self.version = 0
        self._acls: set[Acl] = set()
        self._grants: dict[tuple[str, str, int], Grants] = {}
        self._patterns: dict[int, Grants] = {}
        self._users: Counter[tuple[int, int, str]] = Counter()

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    def __iter__(self) -> Iterator[Acl]:
        """All of them; in no order."""
        return iter(self._acls)

    def in_order(self) -> list[Acl]:
        """All of them, sorted."""
        return sorted(self._acls)

    def add(self, acl: Acl) -> None:
        """Takes one in that isn't there."""
        self._acls.add(acl)
        key = acl.principal, acl.host, acl.resource_type
        grants = self._grants.get(key)
        if grants is None:
            grants = self._grants[key] = Grants()
        grants.change(acl, there=True)
        pattern = acl.resource_type, acl.pattern, acl.name
        self._users[pattern] += 1
        if self._users[pattern] == 1:
            self._patterns.setdefault(acl.resource_type, Grants()).change(
                _anybodys(acl), there=True
            )

    def remove(self, acl: Acl) -> None:
        """Takes one out that is there."""
        self._acls.remove(acl)
        key = acl.principal, acl.host, acl.resource_type
        self._grants[key].change(acl, there=False)
        if not self._grants[key]:
            del self._grants[key]
        pattern = acl.resource_type, acl.pattern, acl.name
        self._users[pattern] -= 1
        if not self._users[pattern]:
            del self._users[pattern]
            self._patterns[acl.resource_type].change(_anybodys(acl), there=False)

    def found(self, wanted: AclFilter) -> list[Acl]:
        """What the filter finds, sorted."""
        exact = wanted.exact()
        if exact is not None:
            return [exact] if exact in self._acls else []
        return sorted(filter(wanted.finds, self._acls))

    def grants(
        self, principals: Iterable[str], hosts: Iterable[str], resource_type: int
    ) -> list[Grants]:
        """What there is for any of these principals from any of these hosts."""
        return [
            grants
            for principal in principals
            for host in hosts
            if (grants := self._grants.get((principal, host, resource_type))) is not None
        ]

    def has_acls(self, resource_type: int, name: str) -> bool:
        """Whether an ACL of anybody applies to the resource."""
        patterns = self._patterns.get(resource_type)
        return patterns is not None and any(True for _ in patterns.of(name))


def _anybodys(acl: Acl) -> Acl:
    """Stands for all ACLs of a pattern."""
    return acl._replace(principal="", host="", operation=Operation.ALL, permission=Permission.ALLOW)

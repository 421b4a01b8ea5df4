"""Who may do what, by the ACLs and `super.users`, as Kafka's StandardAuthorizer decides.

Rules:

* A super user may do everything. Else DENY of anything that applies wins, then ALLOW; where neither
  applies, `allow.everyone.if.no.acl.found` counts, but only for resources that no ACL of anybody
  applies to.
* An ACL is for its principal, or for everybody if that is `User:*`; ALLOW implies DESCRIBE, or
  DESCRIBE_CONFIGS (`acl_table`), DENY implies nothing.
* `Broker:<id>`, which no mechanism of users makes, has CLUSTER_ACTION on the cluster and nothing
  else, whatever the ACLs say: without it nothing would be replicated. `Page:metrics`, which none of
  them makes either, may DESCRIBE everything, configurations too, and nothing else.
* Answers are remembered, by all views together ANSWERS_MAX and by one VIEW_ANSWERS_MAX, until the
  ACLs have another version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakSet

from kraftpy.core.security.acl_table import EVERYTHING, AclTable, bit
from kraftpy.core.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
    address,
)
from kraftpy.core.security.principals import BROKER, PAGE, USER, Principal
from kraftpy.frozen import NamedTuple

VIEW_ANSWERS_MAX = 10_000
ANSWERS_MAX = 100_000
VIEWS_MAX = 1_000
_REMEMBERED_LENGTH_MAX = 255

_EVERYBODY = str(Principal(USER, WILDCARD))
_WRITES = bit(Operation.WRITE)
_LOOKS = bit(Operation.DESCRIBE) | bit(Operation.DESCRIBE_CONFIGS)


class Decision(NamedTuple):
    """Why somebody may do something, or not: an ACL, or what else it is by (`why`)."""

    allowed: bool
    acl: Acl | None
    why: str


class View:
    """What one principal may do from one address."""

    __slots__ = (
        "__weakref__",
        "_answers",
        "_authorizer",
        "_everything",
        "_hosts",
        "_version",
        "_whose",
        "_writes",
        "host",
        "principal",
    )

    def __init__(self, authorizer: Authorizer, principal: Principal, host: str) -> None:
        self.principal = principal
        self.host = host
        self._authorizer = authorizer
        self._everything = principal in authorizer.super_users
        self._whose = tuple({str(principal): None, _EVERYBODY: None})
        self._hosts = tuple({host: None, WILDCARD: None})
        self._answers: dict[tuple[int, str], int] = {}
        self._writes: bool | None = None
        self._version = -1

    def mask(self, resource_type: int, name: str) -> int:
        """All that may be done with a resource."""
        if self._authorizer.acls.version != self._version:
            self._look()
        answer = self._answers.get((resource_type, name))
        if answer is None:
            answer = self._decide(resource_type, name)
            self._remember(resource_type, name, answer)
        return answer

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether the operation is allowed."""
        return self.mask(resource_type, name) & 1 << operation != 0

    def may_cluster(self, operation: int) -> bool:
        """The same of the cluster."""
        return self.mask(Resource.CLUSTER, CLUSTER_NAME) & 1 << operation != 0

    def may_write_any_topic(self) -> bool:
        """Whether there is a topic, there or not, that may be written to (KIP-679).

        Kafka's estimate: what is allowed counts unless the same name, or a prefix of it, is denied.
        """
        if self._everything:
            return True
        if self.principal.type in (BROKER, PAGE):
            return False
        self._look()
        if self._writes is None:
            self._writes = self._decide_any_write()
        return self._writes

    def _decide_any_write(self) -> bool:
        acls = self._authorizer.acls
        allowed: set[tuple[int, str]] = set()
        denied: set[tuple[int, str]] = set()
        for grants in acls.grants(self._whose, self._hosts, Resource.TOPIC):
            for pattern, name, masks in grants.patterns():
                if masks.allowed & _WRITES:
                    allowed.add((pattern, name))
                if masks.denied & _WRITES:
                    denied.add((pattern, name))
        if (Pattern.LITERAL, WILDCARD) in denied:
            return False
        if self._authorizer.allows_without_acls and not acls.has_acls(Resource.TOPIC, ""):
            return True
        lengths = sorted({len(name) for pattern, name in denied if pattern == Pattern.PREFIXED})
        return any(
            (pattern, name) not in denied
            and not any((Pattern.PREFIXED, name[:length]) in denied for length in lengths)
            for pattern, name in allowed
        )

    def explain(self, operation: int, resource_type: int, name: str) -> Decision:
        """The same decision with its reason: for people, not quick."""
        if self._everything:
            return Decision(True, None, "a super user may do everything")
        if self.principal.type == BROKER:
            allowed = self.may(operation, resource_type, name)
            return Decision(allowed, None, "brokers have CLUSTER_ACTION on the cluster, no more")
        if self.principal.type == PAGE:
            allowed = self.may(operation, resource_type, name)
            return Decision(allowed, None, "the page may DESCRIBE everything, and no more")
        acls = self._authorizer.acls
        mine = []
        for acl in acls.in_order():
            if acl.principal not in self._whose or acl.host not in self._hosts:
                continue
            table = AclTable()
            table.add(acl)
            if not table.has_acls(resource_type, name):
                continue
            (grants,) = table.grants((acl.principal,), (acl.host,), resource_type)
            (masks,) = grants.of(name)
            if (masks.allowed | masks.denied) & 1 << operation:
                mine.append(acl)
        for permission in (Permission.DENY, Permission.ALLOW):
            for acl in mine:
                if acl.permission == permission:
                    return Decision(permission == Permission.ALLOW, acl, "the ACL says so")
        if acls.has_acls(resource_type, name):
            return Decision(False, None, "there are ACLs of the resource, none that allows it")
        allowed = self._authorizer.allows_without_acls
        return Decision(allowed, None, "no ACL applies to the resource")

    def _look(self) -> None:
        """Forgets what other ACLs said than there are now."""
        version = self._authorizer.acls.version
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        """Forgets its answers."""
        self._writes = None
        self._authorizer.answers -= len(self._answers)
        self._answers.clear()

    def _remember(self, resource_type: int, name: str, answer: int) -> None:
        if len(name) > _REMEMBERED_LENGTH_MAX:
            return
        if len(self._answers) >= VIEW_ANSWERS_MAX:
            self.forget()
        self._authorizer.make_room()
        self._answers[resource_type, name] = answer
        self._authorizer.answers += 1

    def _decide(self, resource_type: int, name: str) -> int:
        if self._everything:
            return EVERYTHING
        if self.principal.type == BROKER:
            return bit(Operation.CLUSTER_ACTION) if resource_type == Resource.CLUSTER else 0
        if self.principal.type == PAGE:
            return _LOOKS
        acls = self._authorizer.acls
        allowed = denied = 0
        for grants in acls.grants(self._whose, self._hosts, resource_type):
            for masks in grants.of(name):
                allowed |= masks.allowed
                denied |= masks.denied
        if self._authorizer.allows_without_acls and not acls.has_acls(resource_type, name):
            allowed = EVERYTHING
        return allowed & ~denied


class Authorizer:
    """Gives the views of what principals may do. `acls` is replaced when the metadata is."""

    def __init__(
        self,
        acls: AclTable,
        *,
        super_users: Iterable[Principal] = (),
        allows_without_acls: bool = False,
    ) -> None:
        self.acls = acls
        self.super_users = frozenset(super_users)
        self.allows_without_acls = allows_without_acls
        self.answers = 0
        self._views: OrderedDict[tuple[Principal, str], View] = OrderedDict()
        self._all: WeakSet[View] = WeakSet()

    def view(self, principal: Principal, host: str) -> View:
        """The view of one principal that asks from an address; shared by all who do."""
        try:
            host = address(host)
        except ValueError:
            host = ""  # of no address: only ACLs of all hosts apply
        key = principal, host
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View(self, principal, host)
            self._all.add(view)
            if len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(key)
        return view

    def make_room(self) -> None:
        """Forgets everything if there is too much that is remembered."""
        if self.answers >= ANSWERS_MAX:
            for view in self._all:
                view.forget()
            self.answers = 0

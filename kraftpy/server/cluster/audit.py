"""The audit log: who was denied what, in the logger `kafka.authorizer.logger` (Kafka's name).

One line for each principal, host, operation and resource at once, and another one for all of its
repeats within WINDOW_S, with how many they were. KEPT_MAX of them are told apart at a time. What is
left out of an answer silently (docs/security.md) isn't a denial: nobody asked for it by name.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import Sequence

from kraftpy.core.config import BrokerConfig
from kraftpy.core.security.acl_table import AclTable
from kraftpy.core.security.acls import Acl, Operation, Resource
from kraftpy.core.security.authorizer import Authorizer, View
from kraftpy.events import emit

log = logging.getLogger("kafka.authorizer.logger")

WINDOW_S = 10.0
KEPT_MAX = 1_000

_TOLD_MAX = 20

_Denial = tuple[str, str, int, int, str]
_OTHERS: _Denial = "", "", 0, 0, ""


def authorizer_of(config: BrokerConfig, acls: AclTable) -> Authorizer | None:
    """The authorizer that the configuration asks for, None if it asks for none."""
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        acls,
        super_users=config.super_users,
        allows_without_acls=config.allow_everyone_if_no_acl_found,
    )


def tell_acls(added: Sequence[Acl], deleted: Sequence[Acl]) -> None:
    """The ACLs have changed: by whose right, the audit log of the broker that was asked says."""
    for what, acls in (("added", added), ("deleted", deleted)):
        for acl in acls[:_TOLD_MAX]:
            log.info("ACL %s: %s", what, acl)
        if len(acls) > _TOLD_MAX:
            log.info("ACLs %s: %d more", what, len(acls) - _TOLD_MAX)


class AuditLog:
    """Tells what was denied; `denials` says how often that was since the start, for metrics."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._repeats: dict[_Denial, int] = {}
        self.denials = 0

    def denied(self, view: View, operation: int, resource_type: int, name: str) -> None:
        """Somebody may not do something."""
        self.denials += 1
        denial = str(view.principal), view.host, operation, resource_type, name[:256]
        repeats = self._repeats
        if denial in repeats:
            repeats[denial] += 1
            return
        if not repeats:
            self._loop.call_later(WINDOW_S, self._tell_repeats)
        if len(repeats) >= KEPT_MAX:
            repeats[_OTHERS] = repeats.get(_OTHERS, 0) + 1
            return
        repeats[denial] = 0
        _tell(denial, 1)

    def _tell_repeats(self) -> None:
        repeats, self._repeats = self._repeats, {}
        for denial, times in repeats.items():
            if times:
                _tell(denial, times)


def _tell(denial: _Denial, times: int) -> None:
    principal, host, operation, resource_type, name = denial
    emit(
        log,
        logging.INFO,
        "access-denied",
        principal=principal or "(others)",
        host=host,
        operation=Operation(operation).name if operation else "",
        resource=Resource(resource_type).name if resource_type else "",
        name=name,
        times=times,
    )

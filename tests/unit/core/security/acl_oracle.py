"""What ACLs allow, written down as plainly as it is said: a loop over all of them."""

from __future__ import annotations

from collections.abc import Collection

from kraftpy.core.security.acls import Acl, Operation, Pattern, Permission
from kraftpy.core.security.principals import Principal

_DESCRIBES = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


def allowed(
    acls: Collection[Acl],
    super_users: Collection[Principal],
    default: bool,
    principal: Principal,
    host: str,
    operation: Operation,
    resource_type: int,
    name: str,
) -> bool:
    if principal in super_users:
        return True
    anybodys = [acl for acl in acls if _is_of(acl, resource_type, name)]
    applying = [
        acl
        for acl in anybodys
        if acl.principal in (str(principal), "User:*") and acl.host in (host, "*")
    ]
    if any(
        acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL)
        for acl in applying
    ):
        return False
    for acl in applying:
        if acl.permission != Permission.ALLOW:
            continue
        if acl.operation in (operation, Operation.ALL):
            return True
        if operation == Operation.DESCRIBE and acl.operation in _DESCRIBES:
            return True
        if operation == Operation.DESCRIBE_CONFIGS and acl.operation == Operation.ALTER_CONFIGS:
            return True
    return default and not anybodys


def _is_of(acl: Acl, resource_type: int, name: str) -> bool:
    if acl.resource_type != resource_type:
        return False
    if acl.pattern == Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")

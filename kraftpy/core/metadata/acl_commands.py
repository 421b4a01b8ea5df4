"""Carries out the commands on ACLs (KIP-140, KIP-290).

Rules:

* Each item is answered by itself. An ACL that is there already is no error, and no change.
* Filters are looked up here, in the order of the request, and not by whoever proposed the command:
  an ACL that came in between is found, too. What one filter has deleted no later one finds.
* As many ACLs can be there as `limits` says, and one command deletes ACLS_DELETED_MAX at most: each
  of its filters is carried out as a whole or not at all.
* The version of the ACLs is the index of the command that changed them last. A command of a client
  says under which version it was allowed (`allowed_under`), and `state` refuses another one.
"""

from __future__ import annotations

from typing import Any

from kraftpy.core.metadata.commands import CreateAcls, DeleteAcls
from kraftpy.core.metadata.limits import ACLS_DELETED_MAX, ACLS_MAX
from kraftpy.core.metadata.records import AclsChanged, Change
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.core.security.acls import Acl, AclFilter, checked_filter, new_acl
from kraftpy.protocol.errors import ErrorCode, KafkaError


def create_acls(
    state: MetadataTables, index: int, command: CreateAcls, changes: list[Change]
) -> dict[str, Any]:
    """Adds ACLs."""
    answers: list[dict[str, Any]] = []
    added: list[Acl] = []
    for item in command.acls:
        try:
            acl = new_acl(Acl(*item))
            if acl not in state.acls:
                if len(state.acls) >= ACLS_MAX:
                    raise KafkaError(
                        ErrorCode.POLICY_VIOLATION,
                        f"there are {ACLS_MAX} ACLs, and no more can be: delete others first, or "
                        "let prefixes stand for many",
                    )
                state.acls.add(acl)
                added.append(acl)
            answers.append({"error": int(ErrorCode.NONE), "message": None})
        except KafkaError as error:
            answers.append({"error": int(error.code), "message": error.message})
    if added:
        state.acls.version = index
        changes.append(AclsChanged(added=tuple(added)))
    return {"results": answers}


def delete_acls(
    state: MetadataTables, index: int, command: DeleteAcls, changes: list[Change]
) -> dict[str, Any]:
    """Deletes what the filters find."""
    answers: list[dict[str, Any]] = []
    deleted: list[Acl] = []
    for item in command.filters:
        try:
            found = state.acls.found(checked_filter(AclFilter(*item)))
            if len(deleted) + len(found) > ACLS_DELETED_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"the filters find {len(deleted) + len(found)} ACLs, and {ACLS_DELETED_MAX} "
                    "can be deleted at a time: let filters find fewer",
                )
            for acl in found:
                state.acls.remove(acl)
            deleted += found
            acls = [plain(acl) for acl in found]
            answers.append({"error": int(ErrorCode.NONE), "message": None, "acls": acls})
        except KafkaError as error:
            answers.append({"error": int(error.code), "message": error.message, "acls": []})
    if deleted:
        state.acls.version = index
        changes.append(AclsChanged(deleted=tuple(deleted)))
    return {"filters": answers}


def plain(acl: Acl) -> list[Any]:
    """The ACL as msgpack has it."""
    return [each if isinstance(each, str) else int(each) for each in acl]

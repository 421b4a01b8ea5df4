"""Commands on ACLs; `acl_commands` carries them out and has their rules.

create_acls  acls [[resource type, name, pattern, principal, host, operation, permission]]
             -> {results: [{error, message}]}
delete_acls  filters [the same, with null for any name, principal or host]
             -> {filters: [{error, message, acls}]}
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.core.fields import AtMost, Length, Range
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.core.metadata.limits import ACLS_PER_COMMAND_MAX
from kraftpy.core.security.acls import NAME_LENGTH_MAX
from kraftpy.frozen import NamedTuple, dataclass

_Number = Annotated[int, Range(0, 127)]
_Text = Annotated[str, Length(NAME_LENGTH_MAX)]


class AclItem(NamedTuple):
    """An ACL, as `core.security.acls.Acl` has it."""

    resource_type: _Number
    name: _Text
    pattern: _Number
    principal: _Text
    host: _Text
    operation: _Number
    permission: _Number


class AclFilterItem(NamedTuple):
    """A filter, as `core.security.acls.AclFilter` has it."""

    resource_type: _Number
    name: _Text | None
    pattern: _Number
    principal: _Text | None
    host: _Text | None
    operation: _Number
    permission: _Number


@dataclass(frozen=True, slots=True)
class CreateAcls(Command):
    """Adds ACLs; one that is there already is as good as added."""

    NAME = "create_acls"
    LEVEL = SECURITY

    acls: Annotated[tuple[AclItem, ...], AtMost(ACLS_PER_COMMAND_MAX)]
    allowed_under: AllowedUnder = None


@dataclass(frozen=True, slots=True)
class DeleteAcls(Command):
    """Deletes what the filters find when it is carried out."""

    NAME = "delete_acls"
    LEVEL = SECURITY

    filters: Annotated[tuple[AclFilterItem, ...], AtMost(ACLS_PER_COMMAND_MAX)]
    allowed_under: AllowedUnder = None

"""`kraftpy acl`: who may do what with which resource (KIP-11, KIP-290).

Options are named as those of kafka-acls. Rules:

* An ACL is added for what is named: there is no default of principals, operations or resources.
* `remove` takes away what it finds, so it wants to be told something to look for.
* `check` decides by the brokers' own code, with the ACLs, super users and the default that a
  broker tells; what the answer is by, an ACL or something else, is part of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_USAGE,
    GROUP_NAME,
    TEXT,
    TOPIC_NAME,
    Failure,
    echo_json,
    echo_table,
    output_option,
    run_client,
    timeout_option,
)
from kraftpy.client.security_admin import Entry, SecurityAdmin
from kraftpy.core.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    checked_filter,
    new_acl,
    principals_in,
)
from kraftpy.protocol.errors import KafkaError
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.core.security.authorizer import Decision, View

Named = tuple[Resource, str]

# Scripts for Kafka may give this, which no broker here asks for.
_BESIDES = {Resource.TRANSACTIONAL_ID: (Operation.TWO_PHASE_COMMIT,)}

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = {
    "topic": Resource.TOPIC,
    "group": Resource.GROUP,
    "transactional_id": Resource.TRANSACTIONAL_ID,
    "delegation_token": Resource.DELEGATION_TOKEN,
    "user_principal": Resource.USER,
}
_NAMES = {Resource.TOPIC: TOPIC_NAME, Resource.GROUP: GROUP_NAME}
_PRODUCER = {
    Resource.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER = {
    Resource.TOPIC: (Operation.READ, Operation.DESCRIBE),
    Resource.GROUP: (Operation.READ,),
}
_SUPER_USERS = "super.users"
_WITHOUT_ACLS = "allow.everyone.if.no.acl.found"


class _Named(click.ParamType):  # type: ignore[type-arg]
    """One of an enum's names: DescribeConfigs as Java's tools have it, or DESCRIBE_CONFIGS."""

    def __init__(self, kind: type[IntEnum], *left_out: IntEnum) -> None:
        self.name = kind.__name__.lower()
        self._found = {_plain(each.name): each for each in kind if each not in left_out}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> IntEnum:
        if isinstance(value, IntEnum):
            return value
        found = self._found.get(_plain(TEXT.convert(value, param, ctx)))
        if found is None:
            names = ", ".join(map(_shown, self._found.values()))
            self.fail(f"{value!r} is none of {names}", param, ctx)
        return found


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").upper()


def _shown(each: IntEnum) -> str:
    return "".join(word.capitalize() for word in each.name.split("_"))


def _resource_options(function: _F) -> _F:
    """--topic, --group, ..., which the command gets as `resources`."""

    @functools.wraps(function)
    def command(*args: Any, cluster: bool, **given: Any) -> Any:
        resources = [(kind, name) for each, kind in _OPTIONS.items() for name in given.pop(each)]
        if cluster:
            resources.append((Resource.CLUSTER, CLUSTER_NAME))
        return function(*args, resources=resources, **given)

    made: Any = click.option("--cluster", is_flag=True, help="The cluster itself.")(command)
    for option, kind in reversed(_OPTIONS.items()):
        made = click.option(
            f"--{option.replace('_', '-')}",
            type=_NAMES.get(kind, TEXT),
            multiple=True,
            metavar="NAME",
            help=f"A {kind.name.lower().replace('_', ' ')}, * for all of them. Repeatable.",
        )(made)
    found: _F = made
    return found


def _pattern_option(default: Pattern, help_text: str, *left_out: Pattern) -> Callable[[_F], _F]:
    return click.option(
        "--resource-pattern-type",
        "pattern",
        type=_Named(Pattern, *left_out),
        default=default.name.lower(),
        show_default=True,
        metavar="TYPE",
        help=help_text,
    )


def _found_options(function: _F) -> _F:
    """What finds ACLs, which the command gets as `wanted`, a filter for each resource."""

    @functools.wraps(function)
    def command(
        *args: Any,
        resources: list[Named],
        pattern: Pattern,
        principals: Sequence[str],
        host: str | None,
        operation: Operation,
        permission: Permission,
        **others: Any,
    ) -> Any:
        everything: list[tuple[Resource, str | None]] = [(Resource.ANY, None)]
        filters = [
            AclFilter(kind, name, pattern, principal, host, operation, permission)
            for kind, name in resources or everything
            for principal in principals or (None,)
        ]
        return function(
            *args, wanted=[_checked(checked_filter, each) for each in filters], **others
        )

    made: Any = command
    for option in (
        click.option(
            "--permission",
            type=_Named(Permission),
            default="any",
            metavar="TYPE",
            help="Only what allows, or denies.",
        ),
        click.option(
            "--operation", type=_Named(Operation), default="any", help="Only ACLs of this one."
        ),
        click.option("--host", type=TEXT, metavar="ADDRESS", help="Only ACLs of this address."),
        click.option(
            "--principal",
            "principals",
            type=TEXT,
            multiple=True,
            metavar="TYPE:NAME",
            help="Only ACLs of this one, as User:alice. Repeatable.",
        ),
    ):
        made = option(made)
    found: _F = made
    return found


def _checked(check: Callable[[Any], Any], acl: Any) -> Any:
    """As the broker would; what it would refuse is wrong usage."""
    try:
        return check(acl)
    except KafkaError as error:
        raise Failure(error.message, EXIT_USAGE) from None


@click.group()
def command() -> None:
    """Say who may do what, and see why somebody may, or may not."""


@command.command(name="list")
@_resource_options
@_pattern_option(Pattern.MATCH, "any, literal, prefixed; match: what applies to the names.")
@_found_options
@brokers_option
@timeout_option
@output_option
def list_command(wanted: list[AclFilter], brokers: Brokers, timeout_ms: int, output: str) -> None:
    """List ACLs: all of them, or those that apply to a resource.

    \b
    kraftpy acl list --topic orders
    kraftpy acl list --principal User:alice -o json
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            acls = await _described(SecurityAdmin(cluster, timeout_ms=timeout_ms), wanted)
        _show(acls, output)
        if not acls:
            click.echo("no ACLs are found: `kraftpy acl add` makes one", err=True)

    run_client(run())


async def _described(admin: SecurityAdmin, wanted: Iterable[AclFilter]) -> list[Entry]:
    """What is found by any of these, each once."""
    found: set[Entry] = set()
    for each in wanted:
        found.update(await admin.describe_acls(each))
    return sorted(found)


@command.command()
@click.option(
    "--allow-principal",
    "allowed",
    type=TEXT,
    multiple=True,
    metavar="TYPE:NAME",
    help="Who may, as User:alice; User:* is everybody. Repeatable.",
)
@click.option(
    "--deny-principal",
    "denied",
    type=TEXT,
    multiple=True,
    metavar="TYPE:NAME",
    help="Who may not, whatever else is allowed. Repeatable.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    type=TEXT,
    multiple=True,
    metavar="ADDRESS",
    help="From where those may. Repeatable.  [default: everywhere]",
)
@click.option(
    "--deny-host",
    "denied_hosts",
    type=TEXT,
    multiple=True,
    metavar="ADDRESS",
    help="From where those may not. Repeatable.  [default: everywhere]",
)
@click.option(
    "--operation",
    "operations",
    type=_Named(Operation, Operation.ANY),
    multiple=True,
    help="Read, Write, Create, Delete, Alter, Describe, ...; All. Repeatable.",
)
@click.option("--producer", is_flag=True, help="What a producer needs of the topics and ids.")
@click.option("--consumer", is_flag=True, help="What a consumer needs of the topics and groups.")
@_resource_options
@_pattern_option(
    Pattern.LITERAL, "literal, or prefixed: what begins so.", Pattern.ANY, Pattern.MATCH
)
@brokers_option
@timeout_option
@output_option
def add(
    allowed: Sequence[str],
    denied: Sequence[str],
    allowed_hosts: Sequence[str],
    denied_hosts: Sequence[str],
    operations: Sequence[Operation],
    producer: bool,
    consumer: bool,
    resources: list[Named],
    pattern: Pattern,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Add ACLs: one for each principal, address, operation and resource.

    \b
    kraftpy acl add --allow-principal User:alice --operation Read --topic orders
    kraftpy acl add --allow-principal User:bob --consumer --topic orders --group kitchen
    """
    done = _asked_for(resources, operations, producer=producer, consumer=consumer)
    whose = [
        (Permission.ALLOW, allowed, allowed_hosts),
        (Permission.DENY, denied, denied_hosts),
    ]
    if not allowed and not denied:
        raise Failure("nobody is named: --allow-principal or --deny-principal", EXIT_USAGE)
    acls = {
        _checked(
            new_acl,
            Acl(
                kind,
                name,
                Pattern.LITERAL if kind is Resource.CLUSTER else pattern,
                principal,
                host,
                operation,
                permission,
            ),
        )
        for permission, principals, hosts in whose
        for principal in principals
        for host in hosts or (WILDCARD,)
        for kind, name, operation in done
    }

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            await SecurityAdmin(cluster, timeout_ms=timeout_ms).create_acls(sorted(acls))
        _tell("added", sorted(acls), output)

    run_client(run())


def _asked_for(
    resources: Sequence[Named], operations: Sequence[Operation], *, producer: bool, consumer: bool
) -> list[tuple[Resource, str, Operation]]:
    """What is to be done with what."""
    for kind, _ in resources:
        there_are = (Operation.ALL, *OPERATIONS[kind], *_BESIDES.get(kind, ()))
        for operation in operations:
            if operation not in there_are:
                raise Failure(
                    f"{_shown(operation)} of {kind.name} would never match: there are "
                    f"{', '.join(map(_shown, there_are))}. Give resources of other kinds theirs by "
                    "a command of their own",
                    EXIT_USAGE,
                )
    done = [(*each, operation) for each in resources for operation in operations]
    for wanted, needs in ((producer, _PRODUCER), (consumer, _CONSUMER)):
        if wanted:
            done += [
                (*each, operation) for each in resources for operation in needs.get(each[0], ())
            ]
    if not resources:
        raise Failure("no resource is named: --topic, --group, --cluster, ...", EXIT_USAGE)
    if not done:
        raise Failure(
            "nothing is named that is to be done: --operation (All for everything), or --producer "
            "or --consumer with what they need",
            EXIT_USAGE,
        )
    return done


@command.command()
@_resource_options
@_pattern_option(Pattern.LITERAL, "literal, prefixed, any; match: what applies to the names.")
@_found_options
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@brokers_option
@timeout_option
@output_option
def remove(
    wanted: list[AclFilter], dry_run: bool, brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Remove the ACLs that are found.

    \b
    kraftpy acl remove --topic orders --principal User:alice --dry-run
    """
    if any(each._replace(pattern=Pattern.ANY) == AclFilter() for each in wanted):
        raise Failure(
            "that would remove all ACLs: name resources or principals; `--host '*'` finds all "
            "that aren't for a single address",
            EXIT_USAGE,
        )

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
            if dry_run:
                found = await _described(admin, wanted)
            else:
                found = await admin.delete_acls(wanted)
        if not found:
            raise Failure(
                "no ACL is found by that. `kraftpy acl list` shows what there is",
                EXIT_BROKER_ERROR,
            )
        _tell("would remove" if dry_run else "removed", found, output)

    run_client(run())


@command.command()
@click.option(
    "--principal", type=TEXT, required=True, metavar="TYPE:NAME", help="Who, as User:alice."
)
@click.option(
    "--host",
    type=TEXT,
    default="",
    metavar="ADDRESS",
    help="From where.  [default: an address that no ACL names]",
)
@click.option(
    "--operation",
    "operations",
    type=_Named(Operation, Operation.ANY, Operation.ALL),
    multiple=True,
    help="What is to be done. Repeatable.  [default: all that there is to do]",
)
@_resource_options
@brokers_option
@timeout_option
@output_option
def check(
    principal: str,
    host: str,
    operations: Sequence[Operation],
    resources: list[Named],
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Say whether somebody may do something, and which ACL says so.

    It takes DESCRIBE and DESCRIBE_CONFIGS on the cluster. Exit code 1 if an operation that is named
    is denied.

    \b
    kraftpy acl check --principal User:alice --operation Read --topic orders
    """
    from kraftpy.core.security.authorizer import Authorizer

    if not resources:
        raise Failure("no resource is named: --topic, --group, --cluster, ...", EXIT_USAGE)
    try:
        (who,) = principals_in(principal)
    except ValueError:
        raise click.BadParameter(
            f"a principal is written Type:name, as User:alice, not {principal!r}",
            param_hint="'--principal'",
        ) from None
    if host:
        host = _checked(checked_filter, AclFilter(host=host)).host

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
            authorizer = await _authorizer(admin, Authorizer)
        _decide(authorizer.view(who, host), resources, operations, output)

    run_client(run())


async def _authorizer(admin: SecurityAdmin, kind: Any) -> Any:
    """What a broker decides by."""
    from kraftpy.core.security.acl_table import AclTable

    table = AclTable()
    for each in await admin.describe_acls(AclFilter()):
        table.add(Acl(*each))
    settings = await admin.broker_settings()
    super_users = settings.get(_SUPER_USERS)
    if super_users is None and _SUPER_USERS not in settings:
        click.echo(f"kraftpy: the broker doesn't tell {_SUPER_USERS}", err=True)
    return kind(
        table,
        super_users=principals_in(super_users or ""),
        allows_without_acls=(settings.get(_WITHOUT_ACLS) or "").lower() == "true",
    )


def _decide(
    view: View, resources: Iterable[Named], operations: Sequence[Operation], output: str
) -> None:
    """Prints what the view says of each; ends the command with 1 if a named one is denied."""
    decided = [
        (kind, name, operation, view.explain(operation, kind, name))
        for kind, name in resources
        for operation in operations or OPERATIONS[kind]
    ]
    if output == "json":
        echo_json(
            [
                {
                    "resource": kind.name,
                    "name": name,
                    "operation": operation.name,
                    "allowed": decision.allowed,
                    "acl": None if decision.acl is None else _as_json(decision.acl),
                    "because": decision.why,
                }
                for kind, name, operation, decision in decided
            ]
        )
    else:
        echo_table(
            ("RESOURCE", "NAME", "OPERATION", "IS", "BY"),
            [
                (kind.name, name, operation.name, _verdict(decision), decision.acl or decision.why)
                for kind, name, operation, decision in decided
            ],
        )
    if operations and not all(decision.allowed for *_, decision in decided):
        raise click.exceptions.Exit(EXIT_BROKER_ERROR)


def _verdict(decision: Decision) -> str:
    return "allowed" if decision.allowed else "DENIED"


# -- printing


def _tell(what: str, acls: Sequence[Entry], output: str) -> None:
    _show(acls, output)
    if output == "table":
        click.echo(f"{what} {counted(len(acls), 'ACL')}", err=True)


def _show(acls: Sequence[Entry], output: str) -> None:
    shown = [_as_json(each) for each in acls]
    if output == "json":
        echo_json(shown)
    elif shown:
        echo_table([key.upper() for key in shown[0]], [list(each.values()) for each in shown])


def _as_json(acl: Entry) -> dict[str, str]:
    kind, name, pattern, principal, host, operation, permission = acl
    return {
        "permission": _name(Permission, permission),
        "principal": principal,
        "host": host,
        "operation": _name(Operation, operation),
        "resource": _name(Resource, kind),
        "name": name,
        "pattern": _name(Pattern, pattern),
    }


def _name(kind: type[IntEnum], number: int) -> str:
    """The name, or the number of one that a newer broker knows."""
    try:
        return kind(number).name
    except ValueError:
        return str(number)

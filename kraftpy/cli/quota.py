"""`kraftpy quota`: how much clients may have (KIP-546), and addresses may connect (KIP-612).

Options are named as those of kafka-configs. Rules:

* A quota is set for what is named: a user, a client id or both, or an address; each by name or by
  default, which is for all that have none by name.
* What is no quota is told before a broker is asked, by the broker's own rules.
* `remove` takes away all quotas of what is named, or those that are named behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_USAGE,
    TEXT,
    Failure,
    echo_json,
    echo_table,
    output_option,
    parse_key_values,
    run_client,
    timeout_option,
)
from kraftpy.client.security_admin import SecurityAdmin
from kraftpy.core.quotas import CLIENT_ID, IP, USER, Entity, check_key, checked_value, entity_of

_OPTIONS = {"user": USER, "client": CLIENT_ID, "ip": IP}
_DEFAULT = "<default>"

_F = TypeVar("_F", bound=Callable[..., Any])


def _entity_options(function: _F) -> _F:
    """--user, --user-defaults, ..., which the command gets as `parts`: names by type."""

    @functools.wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        parts: dict[str, str | None] = {}
        for option, kind in _OPTIONS.items():
            name, by_default = given.pop(option), given.pop(f"{option}_defaults")
            if name is not None and by_default:
                raise click.UsageError(f"--{option} and --{option}-defaults exclude each other")
            if name is not None or by_default:
                parts[kind] = name
        return function(*args, parts=parts, **given)

    made: Any = command
    for option, what in (("ip", "address"), ("client", "client id"), ("user", "user")):
        made = click.option(
            f"--{option}-defaults", is_flag=True, help=f"Each {what} that has none by name."
        )(made)
        made = click.option(f"--{option}", type=TEXT, metavar="NAME", help=f"A {what}.")(made)
    found: _F = made
    return found


def _checked(parts: Mapping[str, str | None]) -> Entity:
    if not parts:
        raise click.UsageError("say whose: --user, --client, both, or --ip, or the defaults of it")
    try:
        return entity_of(parts.items())
    except ValueError as error:
        raise Failure(str(error), EXIT_USAGE) from None


def _shown(entity: Entity) -> str:
    return ", ".join(f"{kind} {_DEFAULT if name is None else name}" for kind, name in entity)


def _printed(value: float) -> str:
    return f"{value:.15g}"


@click.group()
def command() -> None:
    """Say how much clients may have, and see who may have what."""


@command.command(name="set")
@click.argument("settings", type=TEXT, nargs=-1, required=True, metavar="QUOTA=VALUE...")
@_entity_options
@brokers_option
@timeout_option
def set_command(
    settings: Sequence[str], parts: Mapping[str, str | None], brokers: Brokers, timeout_ms: int
) -> None:
    """Give a user, a client id, both, or an address these quotas; the others stay.

    Of users and client ids: producer_byte_rate and consumer_byte_rate (bytes a second at each
    broker), request_percentage (of a broker's time), controller_mutation_rate (partitions a second
    that are created or deleted). Of addresses: connection_creation_rate (connections a second).
    """
    entity = _checked(parts)
    values: dict[str, float | None] = {}
    for key, text in parse_key_values(settings, "QUOTA=VALUE"):
        try:
            check_key(entity, key)
            values[key] = checked_value(key, _number(text))
        except ValueError as error:
            raise Failure(str(error), EXIT_USAGE) from None
    _alter(brokers, timeout_ms, entity, values)
    for key, value in values.items():
        click.echo(f"{_shown(entity)}: {key} is {_printed(value or 0)}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:120]!r} is no number") from None


def _alter(
    brokers: Brokers, timeout_ms: int, entity: Entity, values: Mapping[str, float | None]
) -> None:
    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
            await admin.alter_quotas(entity, values)

    run_client(run())


@command.command(name="list")
@_entity_options
@brokers_option
@timeout_option
@output_option
def list_command(
    parts: Mapping[str, str | None], brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """List quotas: all of them, or those that have to do with what is named.

    The default, which is for all that have none by name, is null in JSON.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            found = await SecurityAdmin(cluster, timeout_ms=timeout_ms).describe_quotas(parts)
        if output == "json":
            echo_json([{**dict(entity), "quotas": quotas} for entity, quotas in found])
        elif found:
            _table(found)
        else:
            click.echo("nobody has quotas there: `kraftpy quota set` gives some", err=True)

    run_client(run())


def _table(found: Iterable[tuple[Entity, Mapping[str, float]]]) -> None:
    kinds = tuple(_OPTIONS.values())
    rows = []
    for entity, quotas in found:
        names = {kind: _DEFAULT if name is None else name for kind, name in entity}
        for key, value in quotas.items():
            rows.append((*(names.get(kind, "") for kind in kinds), key, _printed(value)))
    echo_table((*(kind.upper() for kind in kinds), "QUOTA", "VALUE"), rows)


@command.command()
@click.argument("keys", type=TEXT, nargs=-1, metavar="[QUOTA...]")
@_entity_options
@brokers_option
@timeout_option
def remove(
    keys: Sequence[str], parts: Mapping[str, str | None], brokers: Brokers, timeout_ms: int
) -> None:
    """Take these quotas from a user, a client id, both, or an address; without any, all of them."""
    entity = _checked(parts)

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
            there = dict(await admin.describe_quotas(dict(entity), strict=True)).get(entity, {})
            gone = [key for key in there if not keys or key in keys]
            missing = [key for key in keys if key not in there]
            if missing or not gone:
                what = ", ".join(missing) or "quotas"
                raise Failure(
                    f"{_shown(entity)} has no {what}; `kraftpy quota list` shows who has what",
                    EXIT_BROKER_ERROR,
                )
            await admin.alter_quotas(entity, dict.fromkeys(gone))
        for key in gone:
            click.echo(f"{_shown(entity)}: {key} is removed")

    run_client(run())

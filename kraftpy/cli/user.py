"""`kraftpy user`: who may log in by SCRAM (KIP-554), and who may see metrics and the page.

Rules:

* A password is never an argument, which others could see; what is sent of it to a broker is salted.
* Brokers are asked, as whoever may alter the cluster. Where nobody can log in yet, or any more,
  `add --node` asks the controllers by the quorum's secret.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    TEXT,
    Failure,
    change_each,
    echo_json,
    echo_table,
    output_option,
    rights_hint,
    run_client,
    timeout_option,
)
from kraftpy.client.security_admin import SCRAM_MECHANISMS, Credential, SecurityAdmin
from kraftpy.protocol.errors import ErrorCode, KafkaError

_PASSWORD_MAX = 4096
_CHARACTER_MAX_BYTES = 4

_F = TypeVar("_F", bound=Callable[..., Any])


def user_failure(name: str, error: KafkaError) -> Failure:
    """An error about a user, with what to type next where that is known."""
    if error.code == ErrorCode.RESOURCE_NOT_FOUND:
        text = (
            f"user {name!r} has no such credentials. `kraftpy user list` shows who has, and for "
            "which mechanisms"
        )
    else:
        text = f"user {name!r}: {error}{rights_hint(error)}"
    return Failure(text, EXIT_BROKER_ERROR)


def _mechanisms_option(text: str) -> Callable[[_F], _F]:
    return click.option(
        "--mechanism",
        "mechanisms",
        type=click.Choice(list(SCRAM_MECHANISMS.values())),
        multiple=True,
        help=f"{text} Repeatable.  [default: both]",
    )


@click.group()
def command() -> None:
    """Say who may log in."""


@command.command()
@click.argument("name", type=TEXT)
@click.option(
    "--node",
    "path",
    metavar="FILE",
    help="server.properties of a node: the user is proposed to its controllers with the quorum's "
    "secret, by which whoever runs the node may do everything. No broker and no login is needed.",
)
@_mechanisms_option("What the user logs in by.")
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=4096,
    show_default=True,
    help="How much work it is to try a password.",
)
@brokers_option
@timeout_option
def add(
    name: str,
    path: str | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    brokers: Brokers,
    timeout_ms: int,
) -> None:
    """Let NAME log in, or give it another password.

    The password is asked for, or read from stdin (one line) if that is no terminal: it's never an
    argument, which others could see.
    """
    from kraftpy.protocol.sasl import scram

    chosen = [each for each in SCRAM_MECHANISMS.values() if not mechanisms or each in mechanisms]
    if path is not None:
        _propose(name, path, chosen, iterations, timeout_ms)
    else:
        password = _password()
        salts = {each: scram.salt_of(os.urandom(32)) for each in chosen}
        credentials = [
            Credential(
                each, iterations, salt, scram.salted_password(each, password, salt, iterations)
            )
            for each, salt in salts.items()
        ]

        async def run() -> None:
            async with brokers.connect(timeout_ms) as cluster:
                admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
                await admin.upsert_credentials(name, credentials)

        run_client(run())
    click.echo(f"{name} may log in by {', '.join(chosen)}")


def _propose(
    name: str, path: str, mechanisms: Sequence[str], iterations: int, timeout_ms: int
) -> None:
    """Has the controllers of a node know the user."""
    from kraftpy.cli.server import load_config
    from kraftpy.core.metadata import ScramMechanism
    from kraftpy.core.metadata.commands import ScramUser
    from kraftpy.core.security.first_credentials import new_credential
    from kraftpy.quorum.client import ControllerUnavailable, ProposalTimeout
    from kraftpy.quorum.credentials import SecretUnusable
    from kraftpy.server.node.first_user import new_salt
    from kraftpy.server.node.unlocking import propose_user

    config = load_config(path)
    password = _password()
    chosen = [each for each in ScramMechanism if each.wire_name in mechanisms]
    user = ScramUser(
        name, tuple(new_credential(each, password, new_salt(), iterations) for each in chosen)
    )
    try:
        asyncio.run(propose_user(config, user, timeout_ms))
    except SecretUnusable as error:
        raise Failure(str(error), EXIT_USAGE) from None
    except KafkaError as error:
        raise Failure(str(error), EXIT_BROKER_ERROR) from None
    except (ControllerUnavailable, ProposalTimeout, TimeoutError) as error:
        raise Failure(str(error) or "the controllers don't answer", EXIT_UNREACHABLE) from None


@command.command(name="list")
@brokers_option
@timeout_option
@output_option
def list_command(brokers: Brokers, timeout_ms: int, output: str) -> None:
    """List who has SCRAM credentials, and by which mechanisms they log in."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            users = await SecurityAdmin(cluster, timeout_ms=timeout_ms).describe_users()
        if output == "json":
            echo_json([{"user": name, "mechanisms": found} for name, found in users.items()])
        elif users:
            echo_table(
                ("USER", "MECHANISM", "ITERATIONS"),
                [(name, *each) for name, found in users.items() for each in found.items()],
            )
        else:
            click.echo("nobody has credentials yet: `kraftpy user add NAME` gives some", err=True)

    run_client(run())


@command.command()
@click.argument("names", type=TEXT, nargs=-1, required=True, metavar="NAME...")
@_mechanisms_option("What the users don't log in by any more.")
@brokers_option
@timeout_option
@output_option
def remove(
    names: Sequence[str],
    mechanisms: tuple[str, ...],
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Let users log in no more: their credentials go, and their connections end.

    What ACLs say of them stays: `kraftpy acl remove --principal User:NAME` removes it.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)

            async def remove_one(name: str) -> str:
                there = await admin.describe_users([name])
                await admin.delete_credentials(name, mechanisms or there[name])
                return "removed"

            await change_each("user", names, remove_one, user_failure, output)

    run_client(run())


@command.command("hash")
@click.argument("name", type=TEXT)
def hash_command(name: str) -> None:
    """Print a line for kraftpy.metrics.users.file, by which NAME may see metrics and the page.

    The password is asked for, or read from stdin (one line) if that is no terminal.
    """
    from kraftpy.metrics.users import PASSWORD_MAX_BYTES, SALT_BYTES, hashed, is_name

    if not is_name(name):
        raise click.BadParameter(
            f"{name[:80]!r} can't log in by HTTP: a name has no colon, no blanks at its ends and "
            "nothing that can't be printed",
            param_hint="'NAME'",
        )
    password = _password()
    if len(password.encode()) > PASSWORD_MAX_BYTES:
        raise Failure("the password is too long", EXIT_USAGE)
    click.echo(f"{name}:{hashed(password, secrets.token_bytes(SALT_BYTES))}")


def _password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        # One more than there may be, and the end of the line: what is longer is not cut unseen.
        line = sys.stdin.buffer.readline(_CHARACTER_MAX_BYTES * (_PASSWORD_MAX + 1) + 2)
        password = os.fsdecode(line).rstrip("\r\n")
    if not password:
        raise Failure("the password is empty: type it, or give it as a line on stdin", EXIT_USAGE)
    if len(password) > _PASSWORD_MAX:
        raise Failure(
            f"the password has more than {_PASSWORD_MAX:,} characters: choose a shorter one",
            EXIT_USAGE,
        )
    try:
        password.encode()
    except UnicodeEncodeError:
        raise Failure("the password is not UTF-8: give it in that encoding", EXIT_USAGE) from None
    return password

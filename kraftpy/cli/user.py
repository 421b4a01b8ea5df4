"""`kraftpy user`: who may log in by SCRAM (KIP-554)."""

from __future__ import annotations

import asyncio
import sys

import click

from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    TEXT,
    Failure,
    timeout_option,
)
from kraftpy.protocol.errors import KafkaError

_PASSWORD_MAX = 4096


@click.group()
def command() -> None:
    """Say who may log in."""


@command.command()
@click.argument("name", type=TEXT)
@click.option(
    "--node",
    "path",
    required=True,
    metavar="FILE",
    help="server.properties of a node: the user is proposed to its controllers with the quorum's "
    "secret, by which whoever runs the node may do everything. No broker and no login is needed.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(["SCRAM-SHA-256", "SCRAM-SHA-512"]),
    multiple=True,
    help="What the user logs in by. Repeatable.  [default: both]",
)
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=4096,
    show_default=True,
    help="How much work it is to try a password.",
)
@timeout_option
def add(
    name: str, path: str, mechanisms: tuple[str, ...], iterations: int, timeout_ms: int
) -> None:
    """Let NAME log in, or give it another password.

    The password is asked for, or read from stdin (one line) if that is no terminal: it's never an
    argument, which others could see.
    """
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
    chosen = [each for each in ScramMechanism if not mechanisms or each.wire_name in mechanisms]
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
    click.echo(f"{name} may log in by {', '.join(each.wire_name for each in chosen)}")


def _password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline(_PASSWORD_MAX).rstrip("\r\n")
    if not password:
        raise Failure("the password is empty", EXIT_USAGE)
    return password

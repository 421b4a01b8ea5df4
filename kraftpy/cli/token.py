"""`kraftpy token`: delegation tokens, which log in as their owner for a limited time (KIP-48).

Options are named as those of kafka-delegation-tokens. Rules:

* A token is named by its id. What it logs in with, its HMAC, is never an argument, which others
  could see: who may renew or expire a token may ask for that, too.
* The HMAC is printed by `create`, once, and by nothing else; with --client-config it isn't printed
  at all, but written where nobody else can read it.
* A file of a client has no other secret: neither the owner's password nor the owner's key.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_USAGE,
    TEXT,
    Failure,
    change_each,
    echo_json,
    echo_table,
    output_option,
    run_client,
    timeout_option,
)
from kraftpy.client.security_admin import SCRAM_MECHANISMS, SecurityAdmin, Token
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import time_text

_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_TIME_MAX_MS = 2**63 - 1
_HINTS = {
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in, by something else than a token, at a "
    "listener that isn't PLAINTEXT (--command-config, -X)",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key, the same for all "
    "brokers",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "a token for somebody else takes "
    "CREATE_TOKENS on that user: `kraftpy acl add --allow-principal User:YOU "
    "--operation CreateTokens --user-principal User:NAME`",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only its owner and its renewers may",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "`kraftpy token list` shows those that you may see",
    ErrorCode.UNSUPPORTED_VERSION: "`kraftpy cluster raise-level` lets an upgraded cluster have "
    "them",
}

_F = TypeVar("_F", bound=Callable[..., Any])


def token_failure(token_id: str, error: KafkaError) -> Failure:
    """An error about a token, with what to type next where that is known."""
    about = f"token {token_id!r}: " if token_id else ""
    # A text of its own says already what is to be done.
    hint = _HINTS.get(error.code) if error.message == error.code.message else None
    return Failure(f"{about}{error}{'' if hint is None else f' Next: {hint}'}", EXIT_BROKER_ERROR)


class _Principal(click.ParamType):  # type: ignore[type-arg]
    """User:NAME."""

    name = "principal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = TEXT.convert(value, param, ctx)
        kind, _, name = text.partition(":")
        if kind != "User" or not name:
            self.fail(f"a user is written User:NAME, as User:alice, not {text!r}", param, ctx)
        return text


def _principals(option: str, name: str, help_text: str) -> Callable[[_F], _F]:
    return click.option(
        option, name, type=_Principal(), multiple=True, metavar="User:NAME", help=help_text
    )


def _period(option: str, name: str, default: str) -> Callable[[_F], _F]:
    return click.option(
        option,
        name,
        type=click.IntRange(-1, _TIME_MAX_MS),
        default=-1,
        metavar="MS",
        help=f"For how long, in milliseconds.  [default: {default}]",
    )


@click.group()
def command() -> None:
    """Delegation tokens: log in as somebody without their password, for a time."""


@command.command()
@click.option(
    "--owner-principal",
    "owner",
    type=_Principal(),
    default=None,
    metavar="User:NAME",
    help="As whom the token logs in.  [default: whoever asks]",
)
@_principals("--renewer-principal", "renewers", "Who else may renew and expire it. Repeatable.")
@_period("--max-life-time-period", "lifetime_ms", "as long as the brokers let it")
@click.option(
    "--client-config",
    "path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write what a client needs to log in by it, as Java's clients and --command-config read "
    "it, into a new file that only you can read; the HMAC isn't printed then.",
)
@click.option(
    "--mechanism",
    type=click.Choice(list(SCRAM_MECHANISMS.values())),
    default=None,
    help="What that client logs in by.  [default: what you do, else SCRAM-SHA-256]",
)
@brokers_option
@timeout_option
@output_option
def create(
    owner: str | None,
    renewers: Sequence[str],
    lifetime_ms: int,
    path: str | None,
    mechanism: str | None,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Make a token, and print what it logs in with: its id and its HMAC.

    \b
    kraftpy token create --command-config alice.conf --client-config job.properties
    """
    if path is None and mechanism is not None:
        raise Failure("--mechanism is about the file of --client-config FILE", EXIT_USAGE)

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
            with _told(), nullcontext() if path is None else _new_file(path, brokers) as file:
                token = await admin.create_delegation_token(
                    owner=owner or "", renewers=renewers, max_lifetime_ms=lifetime_ms
                )
                if file is not None:
                    file.write(_client_config(token, brokers, mechanism))
        _show_created(token, path, output)

    run_client(run())


@contextmanager
def _told() -> Iterator[None]:
    """Errors about all tokens, with what to type next where that is known."""
    try:
        yield
    except KafkaError as error:
        if error.code not in _HINTS:
            raise
        raise token_failure("", error) from None


def _show_created(token: Token, path: str | None, output: str) -> None:
    shown = _as_json(token)
    if path is None:
        shown["hmac"] = token.hmac.reveal()
    else:
        shown["file"] = path
    if output == "json":
        echo_json(shown)
        return
    texts = {
        **shown,
        "renewers": ",".join(token.renewers) or "-",
        **{key: time_text(shown[key]) for key in ("issued_ms", "expires_ms", "max_ms")},
    }
    for key, text in texts.items():
        click.echo(f"{key.removesuffix('_ms').upper():<11}{text}")


# -- the file of a client


@contextmanager
def _new_file(path: str, brokers: Brokers) -> Iterator[IO[str]]:
    """One for nobody else, made before there is a token that would have no place; gone if that
    fails.
    """
    if not brokers.security.protocol.startswith("SASL_"):
        raise Failure(
            "--client-config takes over by what listener you come, and that one has no logins: "
            "come by one that has SCRAM, or write the file yourself (docs/security.md)",
            EXIT_USAGE,
        )
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Failure(
            f"{path} is there already: name a new file, or remove that one", EXIT_USAGE
        ) from None
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}", EXIT_USAGE) from None
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            yield file
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def _client_config(token: Token, brokers: Brokers, mechanism: str | None) -> str:
    """A properties file of Java's."""
    used = (brokers.settings.get("sasl.mechanism") or "").strip().upper()
    scram = tuple(SCRAM_MECHANISMS.values())
    chosen = mechanism or (used if used in scram else scram[0])
    line = (
        f'{_MODULE} required username="{token.id}" password="{token.hmac.reveal()}" '
        'tokenauth="true";'
    )
    settings = {
        "bootstrap.servers": brokers.bootstrap,
        "security.protocol": brokers.security.protocol,
        "sasl.mechanism": chosen,
        "sasl.jaas.config": line,
        **(_trusted(brokers.settings) if brokers.security.tls is not None else {}),
    }
    return "".join(f"{key}={_escaped(value)}\n" for key, value in settings.items())


def _trusted(given: Mapping[str, str]) -> dict[str, str]:
    """Whom the owner trusts, as Java says it; nothing that is the owner's own."""
    check = {
        key: value for key, value in given.items() if key == "ssl.endpoint.identification.algorithm"
    }
    file, pem = given.get("ssl.ca.location"), given.get("ssl.ca.pem")
    if file:
        trusted = {"type": "PEM", "location": str(Path(file).absolute())}
    elif pem:
        trusted = {"type": "PEM", "certificates": pem}
    else:
        keys = ("type", "location", "password", "certificates")
        trusted = {key: given.get(f"ssl.truststore.{key}", "") for key in keys}
        if trusted["location"]:
            trusted["location"] = str(Path(trusted["location"]).absolute())
    return {
        **{f"ssl.truststore.{key}": value for key, value in trusted.items() if value},
        **check,
    }


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith((" ", "\t")) else text


# -- those that there are


@command.command(name="list")
@_principals("--owner-principal", "owners", "Only those that concern this one. Repeatable.")
@brokers_option
@timeout_option
@output_option
def list_command(owners: Sequence[str], brokers: Brokers, timeout_ms: int, output: str) -> None:
    """List the tokens that you may see: your own, and those that you may renew."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
            with _told():
                found = await admin.describe_delegation_tokens(owners or None)
        if output == "json":
            echo_json([_as_json(each) for each in found])
        elif found:
            echo_table(
                ("ID", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "MAX"),
                [
                    (
                        each.id,
                        each.owner,
                        each.requester,
                        ",".join(each.renewers) or "-",
                        *map(time_text, (each.issued_ms, each.expires_ms, each.max_ms)),
                    )
                    for each in found
                ],
            )
        else:
            click.echo(
                "there are no tokens for you to see: `kraftpy token create` makes one", err=True
            )

    run_client(run())


_ids = click.argument("ids", type=TEXT, nargs=-1, required=True, metavar="ID...")


@command.command()
@_ids
@_period("--renew-time-period", "period_ms", "as long as it may")
@brokers_option
@timeout_option
@output_option
def renew(
    ids: Sequence[str], period_ms: int, brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Have tokens last longer, from now on and never beyond their maximum."""

    async def change(admin: SecurityAdmin, token: Token) -> str:
        expires_ms = await admin.renew_delegation_token(token.hmac, period_ms)
        return "renewed" if output == "json" else f"renewed until {time_text(expires_ms)}:"

    _change(ids, change, brokers, timeout_ms, output)


@command.command()
@_ids
@_period("--expiry-time-period", "period_ms", "none: it ends at once")
@brokers_option
@timeout_option
@output_option
def expire(
    ids: Sequence[str], period_ms: int, brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Have tokens end, and with them the connections that have logged in by them."""

    async def change(admin: SecurityAdmin, token: Token) -> str:
        expires_ms = await admin.expire_delegation_token(token.hmac, period_ms)
        if period_ms < 0:
            return "expired"
        return "shortened" if output == "json" else f"ends at {time_text(expires_ms)}:"

    _change(ids, change, brokers, timeout_ms, output)


def _change(
    ids: Sequence[str],
    change: Callable[[SecurityAdmin, Token], Awaitable[str]],
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = SecurityAdmin(cluster, timeout_ms=timeout_ms)
            with _told():
                there = {each.id: each for each in await admin.describe_delegation_tokens()}

            async def change_one(token_id: str) -> str:
                token = there.get(token_id)
                if token is None:
                    raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
                return await change(admin, token)

            await change_each("token", ids, change_one, token_failure, output)

    run_client(run())


def _as_json(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "max_ms": token.max_ms,
    }

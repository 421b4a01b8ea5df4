"""How a command reaches brokers: where they are, and by what its connections are secured.

`brokers_option` gives a command -b, --command-config and -X, and as `brokers` what they say. Rules:

* Settings of a file come from Java's clients (a properties file, with its escapes and continued
  lines) or from librdkafka (each line as it stands): which of both is told by its keys. What isn't
  of security is left alone there, but for where brokers are.
* -X goes before the file. A password is never on the command line, where everybody sees it who can
  list processes: it comes from the file, or from an environment variable.
* No output has a value of these settings.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kraftpy.cli.common import EXIT_USAGE, TEXT, Failure, bootstrap_option

if TYPE_CHECKING:
    from kraftpy.client.cluster import Cluster
    from kraftpy.client.security import Security

_F = TypeVar("_F", bound=Callable[..., Any])

_FILE_MAX_BYTES = 1 << 20
_WHERE = ("bootstrap.servers", "metadata.broker.list")
# What has to be secret, and may come from the environment.
_VARIABLES = {
    "sasl.password": "KRAFTPY_SASL_PASSWORD",
    "ssl.key.password": "KRAFTPY_SSL_KEY_PASSWORD",
    "ssl.keystore.password": "KRAFTPY_SSL_KEYSTORE_PASSWORD",
    "ssl.truststore.password": "KRAFTPY_SSL_TRUSTSTORE_PASSWORD",
}


@dataclass(frozen=True, slots=True)
class Brokers:
    """Where brokers are, and how to get in; `settings` are those of security, as texts."""

    bootstrap: str
    security: Security
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def connect(self, timeout_ms: int) -> Cluster:
        """A client of theirs."""
        from kraftpy.client.cluster import CONNECT_TIMEOUT_MS, Cluster

        return Cluster(
            self.bootstrap,
            request_timeout_ms=timeout_ms,
            connect_timeout_ms=min(timeout_ms, CONNECT_TIMEOUT_MS),
            security=self.security,
        )


@dataclass(frozen=True, slots=True)
class Access:
    """The same without the place: `file` and `own` as they were given, `settings` as texts."""

    file: str | None
    own: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


def brokers_option(function: _F) -> _F:
    """-b, --command-config and -X, which the command gets as `brokers`."""

    @functools.wraps(function)
    def command(
        *args: Any, bootstrap: str, command_config: str | None, own: Sequence[str], **others: Any
    ) -> Any:
        return function(*args, brokers=_brokers(bootstrap, command_config, own), **others)

    made: _F = bootstrap_option(_options(command))  # type: ignore[assignment]
    return made


def security_option(function: _F) -> _F:
    """--command-config and -X for a command that says otherwise where brokers are, as `access`."""

    @functools.wraps(function)
    def command(*args: Any, command_config: str | None, own: Sequence[str], **others: Any) -> Any:
        given = _given(command_config, own)
        _security_of(given, command_config)
        access = Access(command_config, tuple(own), _of_security(given))
        return function(*args, access=access, **others)

    made: _F = _options(command)  # type: ignore[assignment]
    return made


def settings_of_security(file: str) -> dict[str, str]:
    """Those of a file alone, and of the environment; for a second cluster."""
    given = _given(file, ())
    _security_of(given, file)
    return _of_security(given)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "-X",
        "own",
        type=TEXT,
        multiple=True,
        metavar="KEY=VALUE",
        help="One such setting, before those of the file; no passwords. Repeatable.",
    )(command)
    return click.option(
        "--command-config",
        type=click.Path(dir_okay=False),
        envvar="KRAFTPY_COMMAND_CONFIG",
        show_envvar=True,
        metavar="FILE",
        help="Settings of TLS and login, named as Java's clients or librdkafka name them.",
    )(command)


def brokers_of(ctx: click.Context) -> Brokers:
    """What `brokers_option` gives a command, of a command line that isn't complete yet."""
    with ctx.scope():
        given = ctx.params
        return _brokers(given["bootstrap"], given.get("command_config"), given.get("own") or ())


def _brokers(bootstrap: str, file: str | None, own: Sequence[str]) -> Brokers:
    given = _given(file, own)
    context = click.get_current_context()
    if context.get_parameter_source("bootstrap") == ParameterSource.DEFAULT:
        bootstrap = next((given[key] for key in _WHERE if given.get(key)), bootstrap)
    return Brokers(bootstrap, _security_of(given, file), _of_security(given))


def _given(file: str | None, own: Sequence[str]) -> dict[str, str]:
    given = {} if file is None else _settings_of(file)
    given.update(_own_settings(own))
    _add_passwords(given)
    return given


def _of_security(given: Mapping[str, str]) -> dict[str, str]:
    from kraftpy.client.security_settings import is_security

    return {key: value for key, value in given.items() if is_security(key)}


def _security_of(given: Mapping[str, str], file: str | None) -> Security:
    from kraftpy.client.security import SecurityError
    from kraftpy.client.security_settings import parse_security

    try:
        security = parse_security(_of_security(given))
        _ = security.ssl_context  # what is wrong with files is said before anything is done
    except SecurityError as error:
        hint = "'-X'" if file is None else "'--command-config' / '-X'"
        raise click.BadParameter(str(error), param_hint=hint) from None
    return security


def _settings_of(file: str) -> dict[str, str]:
    from kraftpy.client.security_settings import is_librdkafkas
    from kraftpy.core.config import parse_properties
    from kraftpy.core.config.kinds import ConfigError

    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_FILE_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")  # Windows' editors begin with a mark
    except OSError as error:
        raise _file_error(file, error.strerror or "it can't be read") from None
    except UnicodeDecodeError:
        raise _file_error(file, "it isn't UTF-8") from None
    if len(data) > _FILE_MAX_BYTES:
        raise _file_error(file, f"it has more than {_FILE_MAX_BYTES} bytes")
    literal = _lines_of(text)
    if is_librdkafkas(literal):
        return literal
    try:
        return parse_properties(text)
    except ConfigError as error:
        # Its text has what stands in the line, which may be a password.
        raise _file_error(file, f"{error.key} isn't key=value") from None


def _lines_of(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.lstrip().startswith("#"):
            found[key.strip()] = value.strip()
    return found


def _file_error(file: str, reason: str) -> click.BadParameter:
    return click.BadParameter(f"{file}: {reason}", param_hint="'--command-config'")


def _own_settings(own: Sequence[str]) -> dict[str, str]:
    from kraftpy.client.security_settings import SECRETS, is_security

    found = {}
    for number, text in enumerate(own, start=1):
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator or not key:
            raise click.BadParameter(f"number {number} isn't KEY=VALUE", param_hint="'-X'")
        if key in SECRETS:
            variable = _VARIABLES.get(key)
            other = f", or set {variable} in the environment" if variable else ""
            raise click.BadParameter(
                f"{key} on the command line is shown to whoever lists processes: write it into a "
                f"file that only you can read, and give --command-config FILE{other}",
                param_hint="'-X'",
            )
        if not is_security(key) and key not in _WHERE:
            raise click.BadParameter(
                f"{key:.80} is no setting of security; these are, for example, "
                "security.protocol, sasl.mechanism, sasl.username and ssl.ca.location",
                param_hint="'-X'",
            )
        found[key] = value
    return found


def _add_passwords(given: dict[str, str]) -> None:
    """What the environment has, where it's needed and nothing else says it."""
    protocol = given.get("security.protocol", "").strip().upper()
    for key, variable in _VARIABLES.items():
        value = os.environ.get(variable)
        logs_in = protocol.startswith("SASL_") and given.get("sasl.mechanism") != "OAUTHBEARER"
        needed = logs_in if key == "sasl.password" else "SSL" in protocol
        if not value or not needed or given.get(key) or given.get("sasl.jaas.config"):
            continue
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Failure(
                f"{variable} in the environment is not UTF-8: give it in that encoding", EXIT_USAGE
            ) from None
        given[key] = value

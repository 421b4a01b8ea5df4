"""What the subcommands share: options, exit codes, errors as sentences, tables."""

from __future__ import annotations

import importlib
import json
import math
import re
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from kraftpy.cli.failure import (
    EXIT_BROKER_ERROR as EXIT_BROKER_ERROR,
)
from kraftpy.cli.failure import (
    EXIT_INCONSISTENT as EXIT_INCONSISTENT,
)
from kraftpy.cli.failure import (
    EXIT_INTERRUPTED as EXIT_INTERRUPTED,
)
from kraftpy.cli.failure import (
    EXIT_NOT_STARTED as EXIT_NOT_STARTED,
)
from kraftpy.cli.failure import (
    EXIT_TERMINATED as EXIT_TERMINATED,
)
from kraftpy.cli.failure import (
    EXIT_UNDECIDED as EXIT_UNDECIDED,
)
from kraftpy.cli.failure import (
    EXIT_UNHEALTHY as EXIT_UNHEALTHY,
)
from kraftpy.cli.failure import (
    EXIT_UNREACHABLE as EXIT_UNREACHABLE,
)
from kraftpy.cli.failure import (
    EXIT_USAGE as EXIT_USAGE,
)
from kraftpy.cli.failure import (
    Failure as Failure,
)
from kraftpy.cli.failure import (
    styled as styled,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import printable

if TYPE_CHECKING:
    from kraftpy.client.cluster import NoBrokerError

# What the fields of the protocol hold: 16 and 32 bits with a sign.
MAX_PARTITIONS = 2**31 - 1
MAX_REPLICAS = 2**15 - 1
_MAX_TIMEOUT_S = 24 * 60 * 60

_F = TypeVar("_F", bound=Callable[..., Any])


class _Completed:
    """A parameter of topics or groups, which a shell completes by asking the cluster."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # By its name: that module needs this one.
        completion = importlib.import_module("kraftpy.cli.completion")
        found: list[CompletionItem] = completion.names_for(ctx, param, incomplete)
        return found


class _Text(_Completed, click.types.StringParamType):
    """Text that can be sent: an argument whose bytes are not UTF-8 is a usage error.

    `completes` says of what it is a name, "topics" or "groups", where the help doesn't.
    """

    def __init__(self, completes: str | None = None) -> None:
        self.completes = completes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8", param, ctx)
        return text


class Seconds(click.FloatRange):
    """Seconds as a person types them; the command gets milliseconds."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=_MAX_TIMEOUT_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number", param, ctx)
        return math.ceil(seconds * 1000)


class Scope(NamedTuple):
    """A topic, or (not empty) some of its partitions."""

    topic: str
    partitions: tuple[int, ...]


class _TopicPartitions(_Completed, click.ParamType):  # type: ignore[type-arg]
    """`orders` or `orders:0,2`, as Kafka's tools write it."""

    name = "topic"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Scope:
        topic, colon, numbers = TEXT.convert(value, param, ctx).partition(":")
        parts = numbers.split(",") if colon else []
        if not topic or not all(re.fullmatch("[0-9]{1,10}", part) for part in parts):
            self.fail(f"{value!r} is neither TOPIC nor TOPIC:PARTITION,...", param, ctx)
        return Scope(topic, tuple(sorted(set(map(int, parts)))))


TEXT = _Text()
TOPIC_NAME = _Text("topics")
GROUP_NAME = _Text("groups")


def bootstrap_option(function: _F) -> _F:
    """-b, --bootstrap, as kcat spells it."""
    return click.option(
        "-b",
        "--bootstrap",
        type=TEXT,
        envvar="KRAFTPY_BOOTSTRAP",
        default="127.0.0.1:9092",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Brokers to ask first.",
    )(function)


def timeout_option(function: _F) -> _F:
    """--timeout SECONDS, which the command gets as `timeout_ms`."""
    return click.option(
        "--timeout",
        "timeout_ms",
        type=Seconds(),
        default=10,
        show_default=True,
        metavar="SECONDS",
        help="How long to try before giving up.",
    )(function)


def scope_option(what: str, *, required: bool = False) -> Callable[[_F], _F]:
    """-t, --topic TOPIC[:PARTITION,...], which the command gets as `scopes`."""
    return click.option(
        "-t",
        "--topic",
        "scopes",
        type=_TopicPartitions(),
        multiple=True,
        required=required,
        metavar="TOPIC[:N,...]",
        help=what,
    )


def output_option(function: _F) -> _F:
    """-o, --output: a table for people or JSON for programs."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Table for people, JSON for programs.",
    )(function)


def run_client(work: Coroutine[Any, Any, None], *, hears_sigterm: bool = False) -> None:
    """Runs a command's coroutine; what the client raises becomes a `Failure`.

    With `hears_sigterm` SIGTERM cancels it, as Ctrl-C does; a second one ends the process.
    """
    import asyncio

    from kraftpy.client.cluster import AddressError, NoBrokerError
    from kraftpy.client.connection import MAY_WANT, UntrustedError

    try:
        asyncio.run(_until_sigterm(work) if hears_sigterm else work)
    except BrokenPipeError:  # stdout's; what is wrong with a socket arrives as NoBrokerError
        raise
    except NoBrokerError as error:
        hint = _SECURITY_HINT if MAY_WANT in str(error) else _where_hint(error)
        raise Failure(f"{error}{hint}", EXIT_UNREACHABLE) from None
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint="'-b' / '--bootstrap'") from None
    except UntrustedError as error:
        raise Failure(str(error), EXIT_UNREACHABLE) from None
    except ConnectionError as error:
        hint = _SECURITY_HINT if MAY_WANT in str(error) else _HEALTH_HINT
        raise Failure(f"{error}{hint}", EXIT_UNREACHABLE) from None
    except KafkaError as error:
        raise Failure(
            f"{error}{_login_hint(error)}{rights_hint(error)}{health_hint(error)}",
            EXIT_BROKER_ERROR,
        ) from None


async def _until_sigterm(work: Coroutine[Any, Any, None]) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None
    told = False

    def stop(number: int, _: object) -> None:
        nonlocal told
        told = True
        signal.signal(number, before)
        loop.call_soon_threadsafe(running.cancel)

    # Not the loop's own: that is never called while a reader of stdout holds everything up.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        await work
    except asyncio.CancelledError:
        if told:
            raise click.exceptions.Exit(EXIT_TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _where_hint(error: NoBrokerError) -> str:
    if not error.first_contact:
        return ". They did before: `kraftpy cluster health` shows which are back"
    hint = ". Start a broker with `kraftpy dev`, or name yours with -b HOST:PORT"
    if error.asked > 1:
        hint += ". If these are yours, `kraftpy cluster health` shows which are back"
    return hint


_SECURITY_HINT = ". Such settings are given by --command-config FILE or -X KEY=VALUE"
_HEALTH_HINT = ". `kraftpy cluster health` shows what is down"
# What brokers answer that lack a leader, a majority of controllers or enough replicas.
_OUTAGES = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    }
)


def health_hint(error: KafkaError) -> str:
    """Where to look, for an error that part of the cluster being down explains."""
    return _HEALTH_HINT if error.code in _OUTAGES else ""


_RIGHTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "--topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "--group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "--transactional-id",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "--cluster",
}


def rights_hint(error: KafkaError, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Where to look, for what isn't allowed; `names` has what each option of `acl` would name."""
    option = _RIGHTS.get(error.code)
    if option is None:
        return ""
    what = option if option == "--cluster" else f"{option} {names.get(option, 'NAME')}"
    return (
        f". Who may alter the cluster sees by `kraftpy acl check --principal User:NAME {what}` "
        "what is lacking, and allows it by `kraftpy acl add`"
    )


def _login_hint(error: KafkaError) -> str:
    if error.code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        return ". Look at sasl.username, sasl.password and sasl.mechanism (--command-config, -X)"
    if error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        return ". Set sasl.mechanism (--command-config, -X)"
    return ""


def topic_failure(topic: str, error: KafkaError) -> Failure:
    """An error about a topic, with what to type next where that is known."""
    if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Failure(
            f"topic {topic!r} does not exist. `kraftpy topic list` shows what there is, "
            f"`kraftpy topic create {topic}` makes it",
            EXIT_BROKER_ERROR,
        )
    if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return Failure(
            f"topic {topic!r} exists already. `kraftpy topic alter {topic}` changes it, "
            "--if-not-exists accepts it",
            EXIT_BROKER_ERROR,
        )
    hint = (
        _topic_setting_hint(error) or rights_hint(error, {"--topic": topic}) or health_hint(error)
    )
    return Failure(f"topic {topic!r}: {error}{hint}", EXIT_BROKER_ERROR)


def _topic_setting_hint(error: KafkaError) -> str:
    """A suggestion, if the error is about a setting that the broker doesn't know."""
    _, found, key = (error.message or "").partition("Unknown topic config name: ")
    if not found:
        return ""
    from kraftpy.core.config import TOPIC_SETTINGS
    from kraftpy.core.config.kinds import closest

    close = closest(key, TOPIC_SETTINGS)
    return f". Did you mean {close}?" if close else ""


def group_failure(group_id: str, error: KafkaError) -> Failure:
    """An error about a group, with what to type next where that is known."""
    if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
        text = f"group {group_id!r} does not exist. `kraftpy group list` shows what there is"
    elif error.code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID):
        text = (
            f"group {group_id!r} has members: stop them first. `kraftpy group describe {group_id}` "
            "shows where they run"
        )
    elif error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        text = (
            f"group {group_id!r}: its coordinator is reading what it has committed, or can't yet. "
            "Try again; `kraftpy topic describe __individual_commit_offsets` shows who leads that "
            "log, `kraftpy cluster health` what is wrong"
        )
    else:
        hint = rights_hint(error, {"--group": group_id}) or health_hint(error)
        text = f"group {group_id!r}: {error}{hint}"
    return Failure(text, EXIT_BROKER_ERROR)


async def change_each(
    kind: str,
    names: Sequence[str],
    work: Callable[[str], Awaitable[str]],
    failure_of: Callable[[str, KafkaError], Failure],
    output: str,
) -> None:
    """Does the work for each topic or group and says what became of it; exits as the first failed.

    In JSON that is `[{kind: name, "status": ...} or {kind: name, "error": ..., "message": ...}]`.
    """
    results: list[dict[str, str]] = []
    failure: Failure | None = None
    for name in names:
        try:
            status = await work(name)
        except KafkaError as error:
            failed = failure_of(name, error)
            failed.show()
            failure = failure or failed
            results.append({kind: name, "error": error.code.name, "message": error.message})
        else:
            results.append({kind: name, "status": status})
            if output == "table":
                click.echo(f"{status} {kind} {name}")
    if output == "json":
        echo_json(results)
    if failure is not None:
        raise click.exceptions.Exit(failure.code)


def parse_key_values(pairs: Iterable[str], what: str) -> list[tuple[str, str]]:
    """`key=value` arguments as pairs; a usage error names the one that is not."""
    parsed = []
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=what)
        parsed.append((key.strip(), value))
    return parsed


def echo_json(value: Any) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def echo_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints `table_lines`; a terminal shows the header in bold."""
    first, *lines = table_lines(header, rows)
    for line in (styled(first, bold=True), *lines):
        click.echo(line)


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns padded to their widest cell; columns of numbers are aligned to the right.

    A cell that is "-" stands for what is not known, and counts as a number among numbers. Anybody
    may have chosen a name: what a terminal would take for more than text is escaped.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    numeric = [
        any(_is_number(row[i]) for row in cells)
        and all(_is_number(row[i]) or row[i] == "-" for row in cells)
        for i in range(len(header))
    ]
    lines = [list(header), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    padded = [
        [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        for line in lines
    ]
    return ["  ".join(line).rstrip() for line in padded]


def _is_number(cell: str) -> bool:
    return cell.removeprefix("-").isdigit()

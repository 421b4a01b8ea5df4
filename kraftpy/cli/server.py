"""`kraftpy server`: one node in the foreground, configured by a server.properties file, or by its
environment (`environment`).
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from kraftpy.cli import environment
from kraftpy.cli.common import EXIT_NOT_STARTED, EXIT_USAGE, TEXT, Failure, parse_key_values
from kraftpy.cli.logs import LEVELS, log_to

if TYPE_CHECKING:
    from kraftpy.core.config import BrokerConfig
    from kraftpy.server.node.starting import NodeInfo

log = logging.getLogger(__name__)

_NONE: Mapping[str, str] = MappingProxyType({})
_EXIT_CODES_HELP = """\b
Exit codes:
  0  stopped by SIGTERM or Ctrl-C
  1  it started and had to stop; the last line of the log says why
  2  the configuration cannot be used
  4  the node could not start: port taken, folder in use, not writable or of
     another cluster
"""


@click.command(epilog=_EXIT_CODES_HELP)
@click.option(
    "--config",
    "path",
    metavar="FILE",
    help="server.properties, as Kafka's or as `kraftpy dev` writes it.  [default: what the "
    "environment says, KAFKA_LOG_DIRS for log.dirs, as in Kafka's image]",
)
@click.option(
    "-c",
    "--override",
    "settings",
    type=TEXT,
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting in place of the file's, as what differs between nodes that share a file. "
    "Repeatable.",
)
@click.option(
    "--log-level",
    type=click.Choice(list(LEVELS)),
    help="The least that is logged.  [default: kraftpy.log.level of the file]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Lines for people, or JSON objects.  [default: kraftpy.log.format of the file]",
)
def command(
    path: str | None, settings: Sequence[str], log_level: str | None, log_format: str | None
) -> None:
    """Run one node until SIGTERM or Ctrl-C.

    It logs to stderr, one line an event.
    """
    # A process that is the first of its container gets no signal that it has no handler for; from
    # when it has a loop on, the node has its own. Until then there is nothing to put in order, and
    # an exception may be lost: what a hook of a fork raises is.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # To look for garbage while modules are imported takes an eighth of that time and finds little.
    gc.disable()
    from kraftpy.core.config import ConfigError

    changes = dict(parse_key_values(settings, "'-c'"))
    left_alone: Sequence[str] = ()
    if path is None:
        config, left_alone = _of_environment(changes)
    else:
        config = load_config(path, changes)
    log_to(
        logging.StreamHandler(sys.stderr),
        level=log_level or config.kraftpy_log_level,
        log_format=log_format or config.kraftpy_log_format,
        node_id=config.node_id,
    )
    if left_alone:
        log.warning("no settings of a broker, left alone: %s", ", ".join(left_alone))
    from kraftpy.server.node.processes import run_node
    from kraftpy.server.node.starting import StartupError

    gc.freeze()  # what is imported stays: nobody looks through it, nor copies its pages
    gc.enable()
    try:
        code = run_node(config, ready=_tell_ready if path is None else None)
    except StartupError as error:
        raise Failure(str(error), EXIT_NOT_STARTED) from None
    except ConfigError as error:
        raise Failure(f"{path or 'the environment'}: {error}", EXIT_USAGE) from None
    click.get_current_context().exit(code)


def _of_environment(changes: Mapping[str, str]) -> tuple[BrokerConfig, Sequence[str]]:
    """The configuration in the environment, and the variables that are none of it."""
    from kraftpy.core.config import BrokerConfig, ConfigError

    found = environment.given(os.environ)
    if not found.settings:
        raise click.UsageError(
            "name a server.properties with --config FILE, or give settings in the environment: "
            "KAFKA_LOG_DIRS for log.dirs"
        )
    try:
        return BrokerConfig.from_properties({**found.settings, **changes}), found.left_alone
    except ConfigError as error:
        where = f"-c {error.key}" if error.key in changes else environment.variable_of(error.key)
        raise Failure(f"{where}: {error}", EXIT_USAGE) from None


def _tell_ready(node: NodeInfo) -> None:
    click.echo(environment.ready_line(node.node_id))
    sys.stdout.flush()


def load_config(path: str, changes: Mapping[str, str] = _NONE) -> BrokerConfig:
    """The configuration in a server.properties file with these settings in place of its own.

    A `Failure` names what is wrong with it.
    """
    try:
        # Windows' editors begin with a mark.
        with click.open_file(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Failure(f"cannot read {path}: {reason}", EXIT_USAGE) from None
    return parse_config(text, path, changes)


def parse_config(
    text: str, path: str, changes: Mapping[str, str] = _NONE, given: Collection[str] = ()
) -> BrokerConfig:
    """The configuration in the text of server.properties; a `Failure` names what is wrong.

    The keys `given` stand in the text, but come from -c as `changes` do.
    """
    from kraftpy.core.config import BrokerConfig, ConfigError, parse_properties

    try:
        return BrokerConfig.from_properties({**parse_properties(text), **changes})
    except ConfigError as error:
        # What -c said isn't in a file that anybody could put right.
        where = f"-c {error.key}" if error.key in {*changes, *given} else path
        sentence = str(error).removeprefix(f"{error.key}=")
        between = "=" if where != path and sentence != str(error) else ": "
        shown = sentence if between == "=" else str(error)
        raise Failure(f"{where}{between}{shown}", EXIT_USAGE) from None

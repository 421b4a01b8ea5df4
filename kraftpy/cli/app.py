"""The command `kraftpy`: its subcommands by name, and what its exit codes mean.

A command that fails says so in one sentence on stderr (never a traceback for something a user can
put right) and ends with one of the exit codes listed in `EXIT_CODES_HELP`.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any

import click

from kraftpy.cli.failure import EXIT_INTERRUPTED, EXIT_USAGE, Failure

# Name, module that holds `command`, in the order of `kraftpy --help`.
COMMANDS = {
    "dev": "kraftpy.cli.dev",
    "server": "kraftpy.cli.server",
    "topic": "kraftpy.cli.topic",
    "group": "kraftpy.cli.group",
    "offsets": "kraftpy.cli.offsets",
    "transaction": "kraftpy.cli.transaction",
    "user": "kraftpy.cli.user",
    "acl": "kraftpy.cli.acl",
    "token": "kraftpy.cli.token",
    "quota": "kraftpy.cli.quota",
    "produce": "kraftpy.cli.produce",
    "consume": "kraftpy.cli.consume",
    "cluster": "kraftpy.cli.cluster",
    "probe": "kraftpy.cli.probe",
    "consistency": "kraftpy.cli.consistency",
    "pipeline": "kraftpy.cli.pipeline",
    "completion": "kraftpy.cli.completion",
}

# What `kraftpy --help` says of each: the first sentence of its docstring. It is kept here so that
# this needs none of the modules, which take a third of a second to import.
SUMMARIES = {
    "dev": "Start brokers with no configuration, until Ctrl-C.",
    "server": "Run one node until SIGTERM or Ctrl-C.",
    "topic": "Create, list, describe, alter, trim and delete topics.",
    "group": "List, describe and delete consumer groups, and move them to other offsets.",
    "offsets": "Bring committed offsets from ZooKeeper, where Kafka's first consumers kept them, "
    "and back.",
    "transaction": "List, describe and terminate transactions, and find and abort those that hang.",
    "user": "Say who may log in.",
    "acl": "Say who may do what, and see why somebody may, or may not.",
    "token": "Delegation tokens: log in as somebody without their password, for a time.",
    "quota": "Say how much clients may have, and see who may have what.",
    "produce": "Write records, one a line, from FILE or stdin to TOPIC.",
    "consume": "Write the records of TOPIC to stdout, and follow it until Ctrl-C.",
    "cluster": "Show a cluster, check its health, move replicas and leaderships.",
    "probe": "Send messages through every broker, receive them, and tell how it went.",
    "consistency": "Consistency tests in the manner of Jepsen: what was promised, and was it kept?",
    "pipeline": "Load topics into a lake of Parquet files and work on it, with Spark "
    "(kraftpy[spark]).",
    "completion": "Have a shell complete commands, options, topics and groups.",
}

EXIT_CODES_HELP = """\b
Exit codes:
  0    done (also when the reader of the output closed the pipe)
  1    the broker answered with an error, not everything could be done or told, or it
       isn't allowed (acl check)
  2    wrong usage, configuration or input; output that cannot be written
  3    no broker could be reached, or none answered in time
  4    a node could not start: port taken, folder in use or not writable, ...
  5    the cluster is not healthy (cluster health, probe, transaction hanging)
  6    a promise was broken (consistency), or damage found (pipeline audit)
  7    not everything could be decided (consistency)
  130  interrupted with Ctrl-C (dev and server: 0, that is how they end)
  143  ended by SIGTERM (dev and server: 0)
"""


class _LazyGroup(click.Group):
    """Imports a subcommand's module when it is looked up, and none to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        gc.disable()  # what is imported stays: to look for garbage in it takes a tenth of the time
        try:
            command: click.Command = importlib.import_module(module).command
        finally:
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0][:80], COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [(name, shortened(SUMMARIES[name], limit)) for name in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has what it wanted; click would end with 1
            _discard_output()
            ctx.exit(0)


def shortened(text: str, limit: int) -> str:
    """A summary in one line, as click shortens them."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 2].rpartition(' ')[0]}..."


def _show_version(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        import kraftpy

        click.echo(kraftpy.__version__)
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    epilog=EXIT_CODES_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def app() -> None:
    """A durable message broker that speaks the Kafka wire protocol.

    `kraftpy dev` starts one with no configuration; clients since Kafka 0.11 can talk to it.
    """


def run() -> None:
    """Parses the arguments, runs the command, exits."""
    _open_standard_streams()
    try:
        code = app.main(standalone_mode=False)
    except Failure as error:
        error.show()
        sys.exit(error.code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:  # what a command expects it catches itself; this is input and output
        _discard_output()
        Failure(f"cannot read the input or write the output: {error.strerror}", EXIT_USAGE).show()
        sys.exit(EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _open_standard_streams() -> None:
    """Gives a process that was started with stdin, stdout or stderr closed an empty one.

    Otherwise the next socket or file gets the number, and what is printed goes there. A stdout that
    somebody has closed can't be written: that is an error of who prints there, but not of a node,
    whose work is another.
    """
    serves = sys.argv[1:2] in (["dev"], ["server"])
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            access = os.O_RDONLY if fd == 1 and not serves else os.O_RDWR
            os.open(os.devnull, access)  # takes the lowest free number: this one
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - for good


def _discard_output() -> None:
    """Python flushes stdout on the way out: give what nobody takes a place."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

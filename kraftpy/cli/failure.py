"""How a command ends that could not do what it was asked to: a sentence and an exit code.

And what of its output has a colour. Only a terminal gets any (click takes them out elsewhere), and
none where NO_COLOR is set (no-color.org) or TERM is dumb.
"""

from __future__ import annotations

import os
from typing import IO, Any

import click

EXIT_BROKER_ERROR = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NOT_STARTED = 4
EXIT_UNHEALTHY = 5
EXIT_INCONSISTENT = 6
EXIT_UNDECIDED = 7
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143  # as a shell has it of whom SIGTERM ended


class Failure(click.ClickException):
    """Ends the command with a sentence on stderr and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        name = styled("kraftpy:", fg="red", bold=True)
        click.echo(f"{name} {self.format_message()}", file=file, err=True)


def styled(text: str, **style: Any) -> str:
    """The text as `click.style` dresses it, where people want that."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, **style)

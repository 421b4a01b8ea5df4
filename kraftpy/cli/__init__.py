"""The `kraftpy` command.

`main` is the entry point of the script and of `python -m kraftpy`. Nothing is imported before it
runs, and each subcommand's module only when that command is called: `kraftpy server` starts without
the client, `kraftpy topic` without the broker.
"""

from __future__ import annotations


def main() -> None:
    """Runs the command line and leaves the process with a documented exit code (see `app`)."""
    from kraftpy.cli.app import run

    run()

"""`kraftpy completion`: a shell completes commands, options, and the names of topics and groups.

The script is click's; it runs `kraftpy` again with what was typed so far. Rules:

* Names come from the brokers that the command line names, or the environment, or the default. What
  takes longer than `_PATIENCE_S`, or fails, completes nothing: a shell mustn't hang or fill with
  sentences of errors.
* One line is added to the file that the shell reads at its start, once; whoever takes it out again
  has nothing left but the script.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from kraftpy.cli.common import EXIT_NOT_STARTED, EXIT_USAGE, Failure

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_KRAFTPY_COMPLETE"
_PATIENCE_S = 1.5
_NAMES_MAX = 1_000


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.option("--install", is_flag=True, help="Have the shell read it from now on.")
@click.pass_context
def command(ctx: click.Context, shell: str | None, install: bool) -> None:
    """Have a shell complete commands, options, topics and groups.

    Without --install the script is printed. SHELL is the one in the environment if it isn't named.

    \b
    kraftpy completion --install
    kraftpy completion zsh > ~/.zfunc/_kraftpy
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise Failure(f"name your shell: {', '.join(_SHELLS)}", EXIT_USAGE)
    kind = get_completion_class(name)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "kraftpy", _VARIABLE).source()
    if not install:
        click.echo(script)
        return
    try:
        file, rc = _install(name, script)
    except OSError as error:
        raise Failure(
            f"cannot write {error.filename}: {error.strerror}", EXIT_NOT_STARTED
        ) from None
    click.echo(f"wrote {file}")
    if rc is not None:
        click.echo(f"{rc} reads it")
    click.echo("It counts in shells that are started from now on.")


def _install(shell: str, script: str) -> tuple[Path, Path | None]:
    """Writes the script where the shell finds it; the file of the shell that was told so."""
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        file = folder / "fish" / "completions" / "kraftpy.fish"
        _write(file, script)
        return file, None
    folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    file = folder / "kraftpy" / f"completion.{shell}"
    _write(file, script)
    home = Path(os.environ.get("ZDOTDIR") or Path.home()) if shell == "zsh" else Path.home()
    rc = home / f".{shell}rc"
    line = f'[ -r "{file}" ] && . "{file}"  # kraftpy completion'
    before = rc.read_text(encoding="utf-8") if rc.exists() else ""
    if line not in before.splitlines():
        with rc.open("a", encoding="utf-8") as opened:
            opened.write(f"{'' if before.endswith(chr(10)) or not before else chr(10)}{line}\n")
    return file, rc


def _write(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{script}\n", encoding="utf-8")


# -- names


def names_for(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics or groups of the cluster that go on like this, if the parameter takes those."""
    kind = kind_of(param)
    if kind is None or ctx.command.name in ("create", "dev", "server"):
        return []
    try:
        names = asyncio.run(_names(ctx, kind))
    except Exception:  # whatever it was: there is nothing to complete
        return []
    return [CompletionItem(n) for n in names if n.startswith(incomplete)][:_NAMES_MAX]


def kind_of(param: click.Parameter) -> str | None:
    """`topics` or `groups`, by the parameter's type, or what the help calls it."""
    named: str | None = getattr(param.type, "completes", None)
    if named is not None:
        return named
    what = (param.metavar or param.name or "").upper().lstrip("[")
    if "TOPIC" in what and not what.startswith("KEY"):
        return "topics"
    return "groups" if what.startswith("GROUP") else None


async def _names(ctx: click.Context, kind: str) -> list[str]:
    from kraftpy.cli.access import brokers_of
    from kraftpy.client.group_admin import GroupAdmin

    timeout_ms = int(_PATIENCE_S * 1000)
    async with (
        asyncio.timeout(_PATIENCE_S),
        brokers_of(ctx).connect(timeout_ms) as cluster,
    ):
        if kind == "groups":
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            return [group.id for group in await admin.list_groups()]
        await cluster.refresh(None)
        return sorted(name for name, info in cluster.topics.items() if not info.internal)

"""`kraftpy dev`: a cluster for development, with no configuration.

Rules:

* What lies in the folder of the cluster, and what a broker is told, is `cli.nodes`' to know.
* A temporary folder is removed at the end, unless another process uses it (somebody brought a
  killed node back with `kraftpy server`).
* Who is killed by SIGKILL can't remove it: the next one does. The folder has a lock that lives as
  long as this process and the nodes that it has forked.
* `--netns` and `--env` are for `kraftpy.testing`: what each node finds around it.
* `--ephemeral` changes where a temporary folder lies and what `EPHEMERAL_SETTINGS` says, no more.
  Files are written and synced as always; that a sync costs nothing is the memory's doing.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from kraftpy.cli.common import (
    EXIT_NOT_STARTED,
    TEXT,
    Failure,
    echo_json,
    parse_key_values,
)
from kraftpy.cli.nodes import (
    DEFAULT_PORT,
    HOST,
    MAX_BROKERS,
    Prepared,
    Settings,
    existing_nodes,
    is_free,
    prepare,
)
from kraftpy.cli.securing import ADMIN, USERS, Secured, secured
from kraftpy.cli.supervisor import Node, Supervisor, Surroundings

_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux has a file system in memory
_MEMORY_FREE_BYTES = 256 << 20
_PICK_ATTEMPTS = 5
_PREFIX = "kraftpy-"
_OWNER = "dev.lock"
_UNLOCK_TIMEOUT_S = 1.0

_EXIT_CODES_HELP = """\b
Exit codes:
  0   stopped by SIGTERM or Ctrl-C
  2   an option or a setting cannot be used
  4   a node could not start: port taken, folder in use or not writable, ...
"""


@click.command(epilog=_EXIT_CODES_HELP)
@click.option(
    "--brokers",
    type=click.IntRange(1, MAX_BROKERS),
    metavar="N",
    help="How many. Three or more have a metadata quorum of three; one or two have one "
    "controller, which the second can't replace. More than --dir has are added to them, without a "
    "vote.  [default: 1, or what --dir has]",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep data and configuration here.  [default: a temporary folder, removed at the end]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the first broker, the others take the next ones; 0 for free ones.  "
    f"[default: {DEFAULT_PORT}, or what --dir has]",
)
@click.option(
    "-c",
    "--config",
    "settings",
    type=TEXT,
    multiple=True,
    metavar="[ID:]KEY=VALUE",
    help="A setting for server.properties, of broker ID or of all. Repeatable.",
)
@click.option(
    "--ephemeral",
    is_flag=True,
    help="For tests: a temporary folder lies in memory (/dev/shm, if it has room), a stopped "
    "broker is fenced after 3 s and a replica that lags leaves the ISR after 3 s, "
    "__consumer_offsets has 5 partitions.",
)
@click.option(
    "--secure",
    "with_security",
    is_flag=True,
    help="Clients connect by TLS and log in, as admin or alice: a certificate, passwords and files "
    "for clients are made. Needs the extra kraftpy[secure].",
)
@click.option(
    "--exit-on-eof",
    is_flag=True,
    help="Stop when stdin is closed: for programs that must not leave a broker behind. A line "
    "`start ID` on it starts a broker that has ended, or whose folder was added.",
)
@click.option("--netns", type=TEXT, default="", hidden=True)
@click.option("--env", type=TEXT, multiple=True, hidden=True)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json prints one line once the brokers are ready: bootstrap and brokers, each with id, "
    "pid, address, dir, config, page and metrics; with --secure also ca and users, the files for "
    "clients; and one line for each that `start ID` starts.",
)
def command(
    brokers: int | None,
    folder: Path | None,
    port: int | None,
    settings: Sequence[str],
    ephemeral: bool,
    with_security: bool,
    exit_on_eof: bool,
    netns: str,
    env: Sequence[str],
    output: str,
) -> None:
    """Start brokers with no configuration, until Ctrl-C.

    \b
    kraftpy dev                  one, on 127.0.0.1:9092, in a temporary folder
    kraftpy dev --brokers 3      a quorum of three, on 9092, 9093 and 9094
    kraftpy dev --dir ./kafka    keeps its data
    kraftpy dev --port 0         several side by side
    kraftpy dev --secure         with TLS and logins
    """
    by_node = _parse_settings(settings)
    surroundings = Surroundings(netns, dict(parse_key_values(env, "'--env'")))
    root = folder.absolute() if folder else _temporary_folder(in_memory=ephemeral)
    nodes: list[Node] = []
    before = existing_nodes(root)
    try:
        with Supervisor(surroundings) as supervisor:

            def configure() -> Prepared:
                return prepare(
                    root, brokers, port, by_node, ephemeral=ephemeral, with_security=with_security
                )

            nodes = _start(supervisor, root, configure)
            if not nodes:
                return
            if output == "json":
                echo_json(_as_json(nodes, secured(root)))
            else:
                if before and len(before) < len(nodes):
                    _tell_of_added(nodes[len(before) :])
                _greet(nodes, root, folder is None, secured(root))

            def on_exit(node: Node, how: str) -> None:
                click.echo(
                    f"broker {node.id} (pid {node.pid}) {how}. To bring it back: "
                    f"kraftpy server --config {node.config_path}",
                    err=True,
                )

            def on_start(node: Node, failure: str | None) -> None:
                if output == "json":
                    echo_json({"id": node.id, "error": failure} if failure else _describe(node))
                elif failure:
                    click.echo(f"broker {node.id} is not back: {failure}", err=True)
                else:
                    click.echo(f"broker {node.id} is back (pid {node.pid}) on {node.address}")

            supervisor.watch(
                on_exit, on_start if exit_on_eof else None, lambda: existing_nodes(root)
            )
    finally:
        if folder is None:
            _remove(root, nodes)


def _parse_settings(pairs: Sequence[str]) -> Settings:
    settings: dict[int | None, dict[str, str]] = {}
    for key, value in parse_key_values(pairs, "'-c' / '--config'"):
        one = re.fullmatch(r"([0-9]{1,9}):(.*)", key, re.ASCII)
        settings.setdefault(int(one[1]) if one else None, {})[one[2] if one else key] = value
    return settings


def _temporary_folder(*, in_memory: bool) -> Path:
    parent = None
    if in_memory and os.access(_MEMORY_FOLDER, os.W_OK):
        room = os.statvfs(_MEMORY_FOLDER)
        if room.f_bavail * room.f_frsize >= _MEMORY_FREE_BYTES:
            parent = _MEMORY_FOLDER
    for folder in {_MEMORY_FOLDER, Path(tempfile.gettempdir())}:
        _remove_left_behind(folder)
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # It gets its name when it is held, so that nobody finds it free. Nothing closes it.
    held = os.open(root / "held", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    (root / "held").rename(root / _OWNER)
    return root


def _remove_left_behind(parent: Path) -> None:
    """Removes this user's temporary folders whose process was killed, and no node of which runs."""
    for root in parent.glob(f"{_PREFIX}*/"):
        owner = root / _OWNER
        try:
            ours = not root.is_symlink() and owner.lstat().st_uid == os.geteuid()
        except OSError:  # not such a folder, or one that is about to be
            continue
        locks = [owner, *(node.log_dir / ".lock" for node in existing_nodes(root))]
        if ours and all(_unlocked(lock, timeout_s=0) for lock in locks):
            shutil.rmtree(root, ignore_errors=True)


def _start(supervisor: Supervisor, root: Path, configure: Callable[[], Prepared]) -> list[Node]:
    """Starts the nodes; [] when told to stop before they were ready.

    A picked port may be gone when a node binds it; then others are picked.
    """
    for node in existing_nodes(root):
        if not _unlocked(node.log_dir / ".lock"):
            raise Failure(
                f"another process runs the broker in {node.log_dir}. Stop it, or choose another "
                "folder with --dir",
                EXIT_NOT_STARTED,
            )
    for attempt in range(1, _PICK_ATTEMPTS + 1):
        prepared = configure()
        nodes = [node for node, _ in prepared.nodes]
        for node, config in prepared.nodes:
            supervisor.start(node, config, several=len(nodes) > 1)
        try:
            return nodes if supervisor.wait_ready(nodes) else []
        except Failure:
            supervisor.stop()
            if attempt == _PICK_ATTEMPTS or all(is_free(each) for each in prepared.picked):
                raise
            prepared.discard()
    raise AssertionError("the last attempt returns or raises")


def _as_json(nodes: Sequence[Node], security: Secured | None) -> dict[str, object]:
    return {
        "bootstrap": ",".join(node.address for node in nodes),
        "brokers": [_describe(node) for node in nodes],
        **({} if security is None else {"secure": security.as_json()}),
    }


def _describe(node: Node) -> dict[str, object]:
    return {
        "id": node.id,
        "pid": node.pid,
        "address": node.address,
        "dir": str(node.log_dir),
        "config": str(node.config_path),
        "page": node.page_url,
        "metrics": node.metrics_url,
    }


def _greet(nodes: Sequence[Node], root: Path, temporary: bool, security: Secured | None) -> None:
    bootstrap = ",".join(node.address for node in nodes)
    option = "" if f"{HOST}:{DEFAULT_PORT}" in bootstrap.split(",") else f" -b {bootstrap}"
    kcat, users = "", ""
    if security is not None:
        option += f" --command-config {security.client_conf(ADMIN)}"
        kcat = f" -F {security.client_conf(ADMIN)}"
        files = " and ".join(str(security.client_properties(user)) for user in USERS)
        users = f"  users      {', '.join(USERS)}; for Java's tools {files}\n"
    kept = "removed at the end; --dir DIR keeps one" if temporary else "kept"
    urls = " ".join(node.metrics_url for node in nodes if node.metrics_url) or "off"
    page = next((node.page_url for node in nodes if node.page_url), None) or "off"
    what = f"kraftpy: {len(nodes)} brokers are" if len(nodes) > 1 else "kraftpy is"
    click.echo(
        f"""\
{what} ready after {_seconds_since_start():.2f} s

  bootstrap  {bootstrap}
  folder     {root} ({kept})
{users}  page       {page}
  metrics    {urls}

Try, in another terminal:
  echo hello | kraftpy produce greetings{option}
  kraftpy consume greetings{option}
  kcat -b {bootstrap}{kcat} -L
{_experiment(nodes)}
Ctrl-C stops {"them" if len(nodes) > 1 else "it"}."""
    )


def _tell_of_added(nodes: Sequence[Node]) -> None:
    ids = ", ".join(str(node.id) for node in nodes)
    click.echo(
        f"Added: broker {ids}. What is there stays where it is; to spread a topic over all:\n"
        "  kraftpy cluster reassign -t TOPIC\n"
    )


def _experiment(nodes: Sequence[Node]) -> str:
    """What to try with several brokers: the pid to kill, and how to bring the broker back."""
    if len(nodes) == 1:
        return ""
    node = nodes[-1]
    return (
        f"  kill -9 {node.pid}; sleep 3; kraftpy server --config {node.config_path}\n"
        f"      (broker {node.id} dies and comes back)\n"
    )


def _seconds_since_start() -> float:
    """Time since this process was started, its imports included."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_at = int(stat[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at


def _remove(root: Path, nodes: Sequence[Node]) -> None:
    """Removes a temporary folder, unless a process uses one of its nodes."""
    in_use = [node for node in nodes if not _unlocked(node.log_dir / ".lock")]
    if in_use:
        click.echo(f"left {root} as it is: another process runs broker {in_use[0].id}", err=True)
        return
    shutil.rmtree(root, ignore_errors=True)


def _unlocked(lock: Path, timeout_s: float = _UNLOCK_TIMEOUT_S) -> bool:
    """Whether no process holds a lock file; one that is just dying gets a moment."""
    try:
        file = lock.open("rb")
    except OSError:  # there is none, or none that could be held
        return True
    deadline = time.monotonic() + timeout_s
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
            else:
                return True

"""The processes that `kraftpy dev` starts and watches: one per node, forked from this one.

Rules:

* This process imports a node once and forks, before it has a thread or a loop. What only a broker
  needs it imports if there are several: one by itself imports it beside its controller's start.
* A node leaves the terminal's process group (Ctrl-C is for this process, which stops the nodes in
  order) and is killed by the kernel if this process dies.
* A node that ends by itself or by somebody's kill is reported and not started again: who kills a
  broker in an experiment wants it dead. A program that started us may ask for it (`start ID`).
* Signals arrive as bytes on a socket (`signal.set_wakeup_fd`), so that one `select` waits for them,
  for the nodes' reports and for the end of stdin.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.common import EXIT_NOT_STARTED, Failure
from kraftpy.cli.logs import LineFormatter, LogFile, log_to
from kraftpy.cli.server import load_config

if TYPE_CHECKING:
    from kraftpy.core.config import BrokerConfig
    from kraftpy.server.node.starting import NodeInfo

STOP_TIMEOUT_S = 30.0
"""A node that hands over, answers, and has a slow disk takes its time; a test adds that up."""
_LOG_TAIL_LINES = 15
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@dataclass(slots=True)
class Node:
    """A node to start: where it lies, and once it is ready where it listens."""

    id: int
    config_path: Path
    log_dir: Path
    log_path: Path
    host: str = ""
    port: int = 0
    metrics: str | None = None
    scheme: str = "http"
    pid: int = 0
    votes: bool = True
    exit_code: int | None = None
    report_fd: int = -1
    report: bytes = b""
    log_start: int = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def page_url(self) -> str | None:
        """What shows the cluster to a person, None if the node serves no metrics."""
        return f"{self.scheme}://{self.metrics}/" if self.metrics else None

    @property
    def metrics_url(self) -> str | None:
        """What Prometheus scrapes, None if the node serves no metrics."""
        return f"{self.scheme}://{self.metrics}/metrics" if self.metrics else None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What each node finds around it: a network namespace, and variables of its environment.

    All of them are formats, in which `id` is the node's.
    """

    netns: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def enter(self, node_id: int) -> None:
        """Makes them this process's. Raises OSError."""
        for name, value in self.env.items():
            os.environ[name] = value.format(id=node_id)
        if self.netns:
            from kraftpy.testing import isolation

            namespace = os.open(self.netns.format(id=node_id), os.O_RDONLY | os.O_CLOEXEC)
            isolation.enter(namespace)
            os.close(namespace)


class Supervisor:
    """Starts nodes and waits; leaving the `with` block stops them all."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.nodes: list[Node] = []
        self._surroundings = surroundings
        self._signals, self._wakeup = socket.socketpair()

    def __enter__(self) -> Supervisor:
        self._signals.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno())
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._signals.close()
        self._wakeup.close()

    def start(self, node: Node, config: BrokerConfig, *, several: bool) -> None:
        """Forks a node, one of `several` or the only one; `wait_ready` waits until it serves."""
        # Here, so that each child finds it imported. To look for garbage meanwhile takes an eighth
        # of the time, and later would copy pages that processes share.
        gc.disable()
        import kraftpy.server.node.processes
        from kraftpy.core.config.listeners import metrics_tls_settings

        if several:
            import kraftpy.quorum.raft
            import kraftpy.server.node.serving  # noqa: F401
        gc.freeze()
        gc.enable()

        node.exit_code, node.report = None, b""
        node.votes = "controller" in config.process_roles
        node.scheme = "http" if metrics_tls_settings(config) is None else "https"
        node.log_start = node.log_path.stat().st_size if node.log_path.exists() else 0
        node.report_fd, report = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        node.pid = os.fork()
        if node.pid == 0:
            _be_node(node, config, self._surroundings, parent, report)
        os.close(report)
        if node not in self.nodes:
            self.nodes.append(node)

    def wait_ready(self, nodes: Sequence[Node]) -> bool:
        """Waits until the nodes serve, and sets their addresses; False when told to stop meanwhile.

        A `Failure` says why a node did not start.
        """
        waiting = list(nodes)
        while waiting:
            readable, stop = self._select([node.report_fd for node in waiting])
            if stop:
                return False
            ready = [n for n in waiting if n.report_fd in readable and self._is_ready(n)]
            waiting = [node for node in waiting if node not in ready]
        return True

    def _is_ready(self, node: Node) -> bool:
        """Reads some of a node's report, and sets its address once that is complete."""
        part = os.read(node.report_fd, 4096)
        node.report += part
        if not part:
            raise self._not_started(node)
        if not node.report.endswith(b"\n"):
            return False
        _close_report(node)
        answer = json.loads(node.report)
        if "error" in answer:
            self._wait_for_end(node)
            raise Failure(answer["error"], EXIT_NOT_STARTED)
        node.host, node.port, node.metrics = answer["host"], answer["port"], answer["metrics"]
        return True

    def _not_started(self, node: Node) -> Failure:
        how = _ended(self._wait_for_end(node))
        log = node.log_path.read_bytes()[node.log_start :] if node.log_path.exists() else b""
        lines = log.decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        text = "\n  ".join([f"broker {node.id} {how} before it was ready", *lines])
        return Failure(text, EXIT_NOT_STARTED)

    def _wait_for_end(self, node: Node) -> int:
        """Waits for the end of a node that did not start; its exit code."""
        _close_report(node)
        node.exit_code = os.waitstatus_to_exitcode(os.waitpid(node.pid, 0)[1])
        return node.exit_code

    def watch(
        self,
        on_exit: Callable[[Node, str], None],
        on_start: Callable[[Node, str | None], None] | None,
        find: Callable[[], Sequence[Node]],
    ) -> None:
        """Waits for Ctrl-C or SIGTERM; reports each node that ends.

        With `on_start`, also waits for the end of stdin, and does what its lines say: `start ID`
        starts a node that has ended, or one that `find` finds; `on_start` hears when it serves, or
        why it doesn't.
        """
        stdin = [sys.stdin.fileno()] if on_start else []
        lines = b""
        starting: list[Node] = []
        while True:
            for node in self.nodes:
                if node not in starting and node.exit_code is None and not self._is_alive(node):
                    assert node.exit_code is not None
                    on_exit(node, _ended(node.exit_code))
            readable, stop = self._select(stdin + [node.report_fd for node in starting])
            if stop:
                return
            if on_start is None:
                continue
            for node in [each for each in starting if each.report_fd in readable]:
                if self._has_started(node, on_start):
                    starting.remove(node)
            if stdin[0] in readable:
                part = os.read(stdin[0], 4096)
                if not part:
                    return
                *complete, lines = (lines + part).split(b"\n")
                for line in complete:
                    self._obey(line.decode(errors="replace"), starting, on_start, find)

    def _has_started(self, node: Node, on_start: Callable[[Node, str | None], None]) -> bool:
        """Hears from a node that is starting; whether it is known now how that went."""
        try:
            if not self._is_ready(node):
                return False
        except Failure as failure:
            on_start(node, failure.message)
        else:
            on_start(node, None)
        return True

    def _obey(
        self,
        line: str,
        starting: list[Node],
        on_start: Callable[[Node, str | None], None],
        find: Callable[[], Sequence[Node]],
    ) -> None:
        """Carries out a line of stdin: begin to start a node."""
        known = {each.id: each for each in [*find(), *self.nodes]}
        node = next((each for i, each in known.items() if line.split() == ["start", str(i)]), None)
        if node is None:
            ids = ", ".join(map(str, known))
            click.echo(f"cannot do {line!r}: `start ID` starts one of the brokers {ids}", err=True)
        elif node in self.nodes and self._is_alive(node):
            on_start(node, f"broker {node.id} (pid {node.pid}) has not ended")
        else:
            try:
                config = load_config(str(node.config_path))
                self.start(node, config, several=len(known) > 1)
            except Failure as failure:
                on_start(node, failure.message)
            else:
                starting.append(node)

    def _select(self, fds: list[int], timeout_s: float | None = None) -> tuple[list[int], bool]:
        """Waits for input; the readable descriptors, and whether a signal told us to stop."""
        readable, _, _ = select.select([self._signals.fileno(), *fds], [], [], timeout_s)
        numbers = b""
        if self._signals.fileno() in readable:
            readable.remove(self._signals.fileno())
            numbers = self._signals.recv(4096)
        return readable, any(number != signal.SIGCHLD for number in numbers)

    def _is_alive(self, node: Node) -> bool:
        """Whether the node runs; its exit code is set if it doesn't."""
        if node.exit_code is None:
            pid, status = os.waitpid(node.pid, os.WNOHANG)
            if pid:
                node.exit_code = os.waitstatus_to_exitcode(status)
        return node.exit_code is None

    def stop(self) -> None:
        """SIGTERM to every node, SIGKILL to those that take too long or on another Ctrl-C.

        Nodes that don't vote come first: they need a quorum to hand over what they lead.
        """
        hurry = False
        for voting in (False, True):
            alive = [node for node in self.nodes if node.votes is voting and self._is_alive(node)]
            for node in alive:
                os.kill(node.pid, signal.SIGKILL if hurry else signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while alive := [node for node in alive if self._is_alive(node)]:
                left = deadline - time.monotonic()
                _, again = self._select([], max(0.0, left))
                hurry = hurry or again
                if again or left <= 0:
                    for node in alive:
                        os.kill(node.pid, signal.SIGKILL)
                    deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in self.nodes:
            _close_report(node)
        self.nodes.clear()


def _close_report(node: Node) -> None:
    if node.report_fd >= 0:
        os.close(node.report_fd)
        node.report_fd = -1


def _ended(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _be_node(
    node: Node, config: BrokerConfig, surroundings: Surroundings, parent: int, report: int
) -> None:
    """The child: become the node, report to the parent when it serves, never return."""
    from kraftpy.core.config import ConfigError
    from kraftpy.quorum.forking import become_child
    from kraftpy.server.node.processes import run_node
    from kraftpy.server.node.starting import StartupError

    def tell(answer: dict[str, Any]) -> None:
        os.write(report, json.dumps(answer).encode() + b"\n")
        os.close(report)

    def ready(info: NodeInfo) -> None:
        tell({"host": info.host, "port": info.port, "metrics": info.metrics})
        _show_errors()

    code = EXIT_NOT_STARTED
    try:
        become_child(parent, f"kraftpy-{node.id}", [report])
        os.setsid()
        surroundings.enter(node.id)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        log_to(
            LogFile(node.log_path),
            level=config.kraftpy_log_level,
            log_format=config.kraftpy_log_format,
            node_id=node.id,
        )
        code = run_node(config, ready=ready)
    except (StartupError, ConfigError) as error:
        tell({"error": str(error)})
    except BaseException:
        logging.getLogger(__name__).critical("broker %d failed", node.id, exc_info=True)
    finally:
        logging.shutdown()
        os._exit(code)


def _show_errors() -> None:
    """From now on show on the terminal what a person has to know.

    Not before: the parent shows the end of the log of a node that does not start.
    """
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.ERROR)
    terminal.setFormatter(LineFormatter())
    logging.getLogger().addHandler(terminal)

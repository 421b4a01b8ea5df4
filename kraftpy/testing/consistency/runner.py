"""A run: a cluster, workers that load it, faults, healing, reading it all; its history is left.

Rules:

* Clients live in worker processes. One that dies is replaced; one that doesn't end when it is told
  to is killed, and the history says what it lost by that.
* Faults end before the load does: the recovery is part of the history. Then the load stops, and
  only then the final reads begin, so they have to see everything.
* What a run depends on follows from its seed: schedule of faults, choices of clients. The timing
  of processes doesn't.
* A cluster that isn't healthy again after its faults is no anomaly of a history, and yet a failure
  of the run: `Result.unhealthy` says what was wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import random
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster as Connections
from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.cluster import Cluster, ClusterError
from kraftpy.testing.consistency import clients, peer
from kraftpy.testing.consistency.evidence import WORKERS_LOG, keep_nodes
from kraftpy.testing.consistency.faults import (
    FAULTS,
    Act,
    Ground,
    LeftOut,
    Planned,
    cluster_options,
    kinds,
    schedule,
)
from kraftpy.testing.consistency.history import Header, HistoryWriter
from kraftpy.testing.consistency.worker import CRASHED, SESSIONS_MAX, WHERE_SIGNAL, Task
from kraftpy.testing.consistency.workloads import PLAYS, Part
from kraftpy.testing.networks.choice import PROXIES, Choice

NODES = "nodes"
"""The folder in a run's folder for what the nodes left."""
HEALTHY_TIMEOUT_S = 60.0
FINAL_TIMEOUT_S = 90.0
_CONSUMER_HEARTBEAT: dict[str, Any] = {
    # KIP-848 has brokers decide these: 45 s would outlast most of what a run does to a group.
    "group_consumer_min_session_timeout_ms": clients.SESSION_TIMEOUT_MS,
    "group_consumer_session_timeout_ms": clients.SESSION_TIMEOUT_MS,
    "group_consumer_min_heartbeat_interval_ms": clients.HEARTBEAT_INTERVAL_MS,
    "group_consumer_heartbeat_interval_ms": clients.HEARTBEAT_INTERVAL_MS,
}
_SEGMENT_BYTES = 1 << 14  # so that even a run of a minute has old segments
_SETUP_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 25.0
_REPLACE_PAUSE_S = 0.5
_RECOVERY_S = 1.0
_POLL_S = 0.05
_WHERE_S = 0.3

Say = Callable[[str], None]


class RunError(Exception):
    """The run could not be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run; `again` is the command line that does it once more.

    Without `bootstrap` a cluster of `nodes` is started. `rate` is operations per second of all
    workers together. `faults` are names of `FAULTS`, some joined by +; `left_out` says of those
    that were wanted and can't be had here why.
    """

    workload: str
    folder: Path
    faults: Sequence[str] = ()
    time_limit_s: float = 60.0
    rate: float = 100.0
    concurrency: int = 8
    seed: int = 0
    nodes: int = 3
    bootstrap: str = ""
    clients: Sequence[str] = ()
    network: Choice = PROXIES
    left_out: Mapping[str, str] = field(default_factory=dict)
    again: Sequence[str] = ()

    @property
    def history(self) -> Path:
        return self.folder / "history.jsonl"


@dataclass(slots=True)
class Result:
    """What happened besides what the history says; final workers count like all others.

    `faults` that came are counted by name, `void` has those that came to nothing, with the reasons;
    `crashed` workers did so on purpose, `dead` ones didn't, and those
    that were `killed` hung. `unhealthy` says why the cluster didn't heal, empty if it did.
    `kept` is where what the nodes had on disk was copied to, if it was.
    """

    faults: dict[str, int] = field(default_factory=dict)
    void: list[str] = field(default_factory=list)
    crashed: int = 0
    dead: int = 0
    killed: int = 0
    unhealthy: str = ""
    kept: Path | None = None


def quick_cluster(nodes: int, kind: type[Cluster] = Cluster, **options: Any) -> Cluster:
    """A cluster that notices soon when a member of a group is gone, with small segments."""
    small: dict[str, Any] = {
        "internal_segment_bytes": _SEGMENT_BYTES,
        "offsets_topic_segment_bytes": _SEGMENT_BYTES,
    }
    return kind(nodes, **options, **small, **_CONSUMER_HEARTBEAT)


def run(
    plan: Plan,
    *,
    say: Say,
    make_cluster: Callable[..., Cluster] = quick_cluster,
    keep: Callable[[Result], bool] = lambda _: False,
) -> Result:
    """Makes one run.

    `keep` is asked when the history is complete and the nodes are still there: whether to copy what
    they have on disk into the run's folder. A run that raises keeps it anyway.

    Raises RunError, OSError (FileExistsError: the folder has a history), and ClusterError if the
    cluster doesn't start or doesn't do what it is told.
    """
    _check(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    if plan.history.exists():
        raise FileExistsError(17, "there is a history already", str(plan.history))
    with contextlib.ExitStack() as stack:
        cluster = None
        if not plan.bootstrap:
            options = cluster_options(kinds(plan.faults))
            made = make_cluster(plan.nodes, network=plan.network.name, **options)
            cluster = stack.enter_context(made)
        try:
            result = _Run(plan, cluster, say).play()
            wanted = keep(result)
        except Exception:
            _keep_nodes(cluster, plan.folder / NODES, say)
            raise
        if wanted:
            result.kept = _keep_nodes(cluster, plan.folder / NODES, say)
        return result


def _keep_nodes(cluster: Cluster | None, folder: Path, say: Say) -> Path | None:
    if cluster is None:
        return None
    missing = keep_nodes(cluster.nodes.values(), folder)
    say(f"what the nodes left is in {folder}" + "".join(f"; not {each}" for each in missing[:5]))
    return folder


def _check(plan: Plan) -> None:
    if plan.workload not in PLAYS:
        raise RunError(f"no workload is called {plan.workload!r}; there are {', '.join(PLAYS)}")
    for name in kinds(plan.faults):
        if name not in FAULTS:
            raise RunError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")
        if plan.nodes < FAULTS[name].nodes:
            raise RunError(f"{name} takes {FAULTS[name].nodes} nodes at least")
    if plan.faults and plan.bootstrap:
        raise RunError("faults are for clusters that this command starts: leave --bootstrap out")
    there = clients.available()
    missing = [each for each in plan.clients if each not in there]
    if unknown := set(missing) - clients.LIBRARIES.keys():
        known = ", ".join(clients.LIBRARIES)
        raise RunError(f"no client is called {min(unknown)!r}; there are {known}")
    able = PLAYS[plan.workload].final.clients
    if not missing and not set(plan.clients or there) & set(able):
        raise RunError(f"{plan.workload} needs one of {', '.join(able)} among its clients")
    if missing:
        wanted = " ".join(repr(clients.LIBRARIES[each].install) for each in missing)
        raise RunError(f"{', '.join(missing)} can't be imported: pip install {wanted}")


class _Process:
    """One worker, and what it said of itself."""

    def __init__(self, task: Task, errors: Path) -> None:
        self.task = task
        self.sessions: list[int] = []
        self.crashed = False
        self.stood_still_ms = 0
        self._frozen_at = 0.0
        self._unread = b""
        with errors.open("ab") as stderr:
            self._popen = subprocess.Popen(  # noqa: S603 - the command is ours
                task.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )

    def stop(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(b"stop\n")
            self._popen.stdin.flush()

    def listen(self) -> None:
        """Takes in what it has said."""
        assert self._popen.stdout is not None
        fd = self._popen.stdout.fileno()
        while select.select([fd], [], [], 0)[0]:
            part = os.read(fd, 65536)
            if not part:
                break
            *lines, self._unread = (self._unread + part).split(b"\n")
            self.sessions += [json.loads(line)["process"] for line in lines]

    def say_where(self) -> None:
        """Has it write to its log where it hangs."""
        self._popen.send_signal(WHERE_SIGNAL)
        time.sleep(_WHERE_S)

    @property
    def name(self) -> str:
        return f"worker {self.task.number} ({self.task.role}, {self.task.client})"

    def crash(self) -> None:
        self.crashed = True
        os.killpg(self._popen.pid, signal.SIGKILL)

    def freeze(self) -> None:
        self._frozen_at = time.monotonic()
        os.killpg(self._popen.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGCONT)
        self.stood_still_ms = int(1000 * (time.monotonic() - self._frozen_at))

    @property
    def ended(self) -> int | None:
        """Its exit code."""
        return self._popen.poll()

    def kill(self) -> None:
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self.listen()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class _Run:
    def __init__(self, plan: Plan, cluster: Cluster | None, say: Say) -> None:
        self._plan = plan
        self._cluster = cluster
        self._say = say
        self._play = PLAYS[plan.workload]
        self._bootstrap = plan.bootstrap if cluster is None else cluster.bootstrap
        self._clients = list(plan.clients) or clients.available()
        self._workers: list[_Process] = []
        self._numbers = 0
        self._fault_ids = 0
        self._result = Result()
        # Unique, so that a cluster that is there anyway can be tested again and again.
        name = f"{plan.workload}-{int(time.time())}-{os.getpid()}"
        self._options = self._play.options(name, plan.time_limit_s)
        self._topics = dict(self._play.topics(self._options))
        self._started_ns = 0
        self._history = HistoryWriter(plan.history, self._header())

    def play(self) -> Result:
        with self._history:
            try:
                self._set_up()
                self._started_ns = time.monotonic_ns()
                self._history.phase("load")
                self._say(f"{self._plan.workload}: load for {self._plan.time_limit_s:g} s")
                for part, client in self._parts():
                    self._hire(part, client)
                with self._observers():
                    self._break_and_heal(time.monotonic() + self._plan.time_limit_s)
                self._dismiss(_STOP_TIMEOUT_S)
                self._settle()
                self._history.phase("final")
                self._say("reading everything")
                for client in self._clients_of(self._play.final):
                    self._hire(self._play.final, client)
                self._wait_for_final()
                self._inspect()
            finally:
                self._dismiss(0.0)
        return self._result

    def _break_and_heal(self, deadline: float) -> None:
        try:
            self._inflict(deadline)
        except ClusterError as error:
            self._not_healed(error)
        self._watch_until(deadline)
        self._heal()
        self._watch_until(time.monotonic() + _RECOVERY_S)

    def _header(self) -> Header:
        versions = {"python": platform.python_version(), "linux": platform.release()}
        for name in ("kraftpy", *self._clients):
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        plan = self._plan
        if plan.bootstrap:
            versions |= peer.describe(plan.bootstrap)
        options = {
            **self._options,
            "faults": list(plan.faults),
            "time_limit_s": plan.time_limit_s,
            "rate": plan.rate,
            "concurrency": plan.concurrency,
            "clients": self._clients,
            "sessions_per_client": SESSIONS_MAX,
            "tested": plan.bootstrap or f"kraftpy, {plan.nodes} nodes",
            "links": plan.network.text() if self._cluster is not None else "as they are",
            "left_out": dict(plan.left_out),
            "inspected": self._play.inspected and self._cluster is not None,
        }
        return Header(
            plan.workload,
            plan.seed,
            options,
            versions,
            tuple(plan.again),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )

    # -- workers

    def _parts(self) -> Iterator[tuple[Part, str]]:
        """Parts in turn; each role goes through the clients that can play it."""
        turns: dict[str, int] = {}
        cast = [part for part in self._play.cast if self._clients_of(part)]
        for number in range(self._plan.concurrency):
            part = cast[number % len(cast)]
            able = self._clients_of(part)
            turn = turns.get(part.role, 0)
            turns[part.role] = turn + 1
            yield part, able[turn % len(able)]

    def _clients_of(self, part: Part) -> list[str]:
        return [client for client in self._clients if client in part.clients]

    def _hire(self, part: Part, client: str) -> None:
        plan = self._plan
        task = Task(
            workload=plan.workload,
            role=part.role,
            number=self._numbers,
            history=str(plan.history.absolute()),
            bootstrap=self._bootstrap,
            client=client,
            seed=plan.seed,
            rate=plan.rate / plan.concurrency,
            started_ns=self._started_ns,
            options=self._options,
        )
        self._numbers += 1
        self._workers.append(_Process(task, plan.folder / WORKERS_LOG))

    def _watch_until(self, deadline: float) -> None:
        """Replaces workers that die, until then."""
        while time.monotonic() < deadline:
            for worker in list(self._workers):
                worker.listen()
                if worker.ended is not None:
                    self._bury(worker)
                    if worker.ended == CRASHED or worker.crashed:
                        self._result.crashed += 1
                    else:
                        self._result.dead += 1
                        self._say(
                            f"{worker.name} ended with {worker.ended}, see workers.log;"
                            " there is another one now"
                        )
                        time.sleep(_REPLACE_PAUSE_S)
                    self._hire(Part(worker.task.role), worker.task.client)
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))

    def _bury(self, worker: _Process) -> None:
        """Makes sure that it is gone, and says in its name what it can't own any more."""
        worker.kill()
        self._workers.remove(worker)
        if worker.crashed and worker.sessions:
            self._history.note(worker.sessions[-1], "crashed", {"by": "SIGKILL"})
        if self._plan.workload == "groups" and worker.sessions:
            keys = [f"{topic}-{i}" for topic, count in self._topics.items() for i in range(count)]
            for group in self._options["groups"].values():
                value = {"group": group, "keys": keys}
                self._history.note(worker.sessions[-1], "gone", value)

    def _note_frozen(self) -> None:
        """Says of those that stood still, and go on now, for how long they did."""
        for worker in self._workers:
            if worker.stood_still_ms and worker.sessions:
                value = {"ms": worker.stood_still_ms}
                self._history.note(worker.sessions[-1], "frozen", value)
            worker.stood_still_ms = 0

    def _dismiss(self, timeout_s: float) -> None:
        """Has all workers finish; kills those that take longer."""
        deadline = time.monotonic() + timeout_s
        if timeout_s:
            for worker in self._workers:
                worker.stop()
        for worker in list(self._workers):
            while worker.ended is None and time.monotonic() < deadline:
                worker.listen()
                time.sleep(_POLL_S)
            if worker.ended is None and timeout_s:
                self._result.killed += 1
                task = worker.task
                worker.say_where()
                self._say(
                    f"worker {task.number} ({task.role}, {task.client}) hung: killed,"
                    " workers.log says where it was"
                )
            if worker.ended == 0:
                worker.kill()
                self._workers.remove(worker)
            else:
                self._bury(worker)

    def _wait_for_final(self) -> None:
        deadline = time.monotonic() + FINAL_TIMEOUT_S
        for worker in self._workers:
            while worker.ended is None and time.monotonic() < deadline:
                worker.listen()
                time.sleep(_POLL_S)
        for worker in list(self._workers):
            task = worker.task
            if worker.ended is None:
                self._result.killed += 1
                worker.say_where()
                self._say(f"the final {task.role} of {task.client} did not end: killed")
            elif worker.ended:
                self._result.dead += 1
                self._say(f"the final {task.role} of {task.client} ended with {worker.ended}")

    # -- the cluster

    def _set_up(self) -> None:
        """Makes the topics; they have to be there before the load."""
        if self._cluster is not None:
            self._cluster.wait_healthy(_SETUP_TIMEOUT_S)
        try:
            asyncio.run(self._make_topics())
        except (OSError, KafkaError) as error:
            raise RunError(f"the topics can't be made: {error}") from None
        if self._cluster is not None:
            self._cluster.wait_healthy(_SETUP_TIMEOUT_S)

    async def _make_topics(self) -> None:
        async with Connections(self._bootstrap) as connections:
            admin = Admin(connections, timeout_ms=int(_SETUP_TIMEOUT_S * 1000))
            for topic, partitions in self._topics.items():
                await admin.create_topic(topic, partitions=partitions, configs=self._play.configs)

    def _inflict(self, deadline: float) -> None:
        if self._cluster is None:
            return
        for planned in schedule(self._plan.seed, self._plan.faults):
            begins_at = time.monotonic() + planned.wait_s
            if begins_at + planned.duration_s > deadline:
                return  # it would not end before the load does
            self._watch_until(begins_at)
            self._inflict_one(self._cluster, planned)
            if planned.until_healthy:
                self._await_health(deadline - time.monotonic())

    def _inflict_one(self, cluster: Cluster, planned: Planned) -> None:
        """Begins a fault, lets it last, ends it; several that belong together at the same time."""
        rng = random.Random(planned.seed)  # noqa: S311 - has to be repeatable
        alive = [worker for worker in self._workers if worker.ended is None]
        ground = Ground(cluster, self._topics, rng, planned.target, clients=alive)
        duration_s = max(planned.duration_s, *(FAULTS[name].least_s for name in planned.names))
        begun: list[tuple[int, str, Act, str]] = []
        for name in planned.names:
            act = FAULTS[name].plan(ground)
            self._fault_ids += 1
            targets = [str(node) for node in act.targets]
            self._history.fault(name, "start", self._fault_ids, targets, act.detail)
            more = act.begin() or ""
            begun.append((self._fault_ids, name, act, more))
            if isinstance(more, LeftOut):
                self._result.void.append(f"{name}: {more}")
                self._say(f"{name} left out: {more}")
                continue
            self._result.faults[name] = self._result.faults.get(name, 0) + 1
            self._say(
                f"{name}: {', '.join(targets)} ({act.detail}{'; ' * bool(more)}{more})"
                f" for {duration_s:.1f} s"
            )
        self._watch_until(time.monotonic() + duration_s)
        for number, name, act, more in reversed(begun):
            act.end()
            self._note_frozen()
            phase = "void" if isinstance(more, LeftOut) else "end"
            self._history.fault(name, phase, number, [str(node) for node in act.targets], more)
        for each in cluster.nodes.values():
            if each.running and each.ended:
                raise ClusterError(f"broker {each.id} ended by itself\n{cluster.log_tail()}")

    def _await_health(self, timeout_s: float) -> None:
        """Goes on watching the workers until nothing is left of the last fault."""
        assert self._cluster is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self._cluster.wait_healthy(0.2)
                return
            except ClusterError:
                self._watch_until(time.monotonic())

    def _settle(self) -> None:
        """Waits until every broker knows of the last that was done; a broken cluster is known."""
        if self._cluster is not None and not self._result.unhealthy:
            self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)

    def _observers(self) -> contextlib.AbstractContextManager[object]:
        if self._cluster is None or not self._play.inspected:
            return contextlib.nullcontext()
        from kraftpy.testing.consistency.inspection import Observers

        nodes = list(self._cluster.nodes.values())
        return Observers(nodes, self._topics, self._history, self._new_processes(len(nodes)))

    def _new_processes(self, count: int) -> int:
        """The first of so many numbers for what isn't a client."""
        first = self._numbers * SESSIONS_MAX
        self._numbers += count
        return first

    def _inspect(self) -> None:
        """Stops all nodes and notes what is on their disks, unless the cluster is broken."""
        cluster = self._cluster
        if cluster is None or not self._play.inspected or self._result.unhealthy:
            return
        from kraftpy.testing.consistency.inspection import inspect

        self._say("stopping the nodes, to look at their disks")
        places = cluster.partitions_of(*self._topics)
        replicas = {place: cluster.replicas_of(*place) for place in places}
        for node in cluster.nodes.values():
            cluster.stop(node.id)
        folders = {node.id: node.log_dir for node in cluster.nodes.values()}
        inspect(folders, replicas, self._history, self._new_processes(1))

    def _heal(self) -> None:
        if self._cluster is None:
            return
        self._history.phase("heal")
        self._say("healing")
        try:
            self._cluster.heal()
            self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        except ClusterError as error:
            self._not_healed(error)

    def _not_healed(self, error: ClusterError) -> None:
        """Keeps the first of these; the rest of the run shows what clients make of it."""
        if self._result.unhealthy:
            return
        self._result.unhealthy = str(error)
        self._fault_ids += 1
        detail = str(error).partition("\n")[0]
        self._history.fault("not healed", "point", self._fault_ids, [], detail)
        self._say(detail)

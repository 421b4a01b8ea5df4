"""A run: a cluster, workers that load it, faults, healing, reading it all; its history is left.

Rules:

* Faults end before the load does: the recovery is part of the history. Then the load stops (where
  groups process it, those that make it first), and only then the final reads begin, so they have to
  see everything.
* What a run depends on follows from its seed: schedule of faults, choices of clients. The timing
  of processes doesn't.
* A cluster that isn't healthy again after its faults is no anomaly of a history, and yet a failure
  of the run: `Result.unhealthy` says what was wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster as Connections
from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.cluster import Cluster, ClusterError
from kraftpy.testing.consistency import clients, peer, secured
from kraftpy.testing.consistency.crew import Crew, Say
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
from kraftpy.testing.consistency.faults.frames import Frames
from kraftpy.testing.consistency.history import Header, HistoryWriter
from kraftpy.testing.consistency.plan import LATE, Plan, Result, RunError, check_plan
from kraftpy.testing.consistency.rest import QUIET_S, Rest
from kraftpy.testing.consistency.worker import SESSIONS_MAX
from kraftpy.testing.consistency.workloads import PLAYS

NODES = "nodes"
"""The folder in a run's folder for what the nodes left."""
HEALTHY_TIMEOUT_S = 60.0
_SEGMENT_BYTES = 1 << 14  # so that even a run of a minute has old segments
GROUP_TIMES: dict[str, Any] = {
    # KIP-848 has brokers decide these: 45 s would outlast most of what a run does to a group.
    "group_consumer_min_session_timeout_ms": clients.SESSION_TIMEOUT_MS,
    "group_consumer_session_timeout_ms": clients.SESSION_TIMEOUT_MS,
    "group_consumer_min_heartbeat_interval_ms": clients.HEARTBEAT_INTERVAL_MS,
    "group_consumer_heartbeat_interval_ms": clients.HEARTBEAT_INTERVAL_MS,
    "group_share_min_session_timeout_ms": clients.SESSION_TIMEOUT_MS,
    "group_share_session_timeout_ms": clients.SESSION_TIMEOUT_MS,
    "group_share_min_heartbeat_interval_ms": clients.HEARTBEAT_INTERVAL_MS,
    "group_share_heartbeat_interval_ms": clients.HEARTBEAT_INTERVAL_MS,
    "group_share_min_record_lock_duration_ms": clients.LOCK_MS,
    "group_share_record_lock_duration_ms": clients.LOCK_MS,
}
"""Those of a broker whose groups are judged, Apache Kafka's too: who is killed is soon gone."""
_SHARE_STATE: dict[str, Any] = {
    # Snapshots after few updates, and a log that is cut off behind them.
    "group_share_initialize_retry_interval_ms": 1_000,
    "share_coordinator_snapshot_update_records_per_snapshot": 50,
    "share_coordinator_state_topic_prune_interval_ms": 5_000,
    "share_coordinator_state_topic_segment_bytes": _SEGMENT_BYTES,
}
_SETUP_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 25.0
_RECOVERY_S = 1.0
_LOOK_EVERY_S = 0.1
_GROUP_RESOURCE = 32


def quick_cluster(nodes: int, kind: type[Cluster] = Cluster, **options: Any) -> Cluster:
    """A cluster that notices soon when a member of a group is gone, with small segments."""
    small: dict[str, Any] = {
        "internal_segment_bytes": _SEGMENT_BYTES,
        "offsets_topic_segment_bytes": _SEGMENT_BYTES,
    }
    return kind(nodes, **options, **small, **GROUP_TIMES, **_SHARE_STATE)


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
    check_plan(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    if plan.history.exists():
        raise FileExistsError(17, "there is a history already", str(plan.history))
    with contextlib.ExitStack() as stack:
        cluster = None
        if not plan.bootstrap:
            options = cluster_options(kinds(plan.faults))
            if plan.secure:
                options["secure"] = True
            made = make_cluster(plan.nodes, network=plan.network.name, **options)
            cluster = stack.enter_context(made)
            if cluster.secured is not None:
                secured.use(cluster.secured.settings())
                stack.callback(secured.use, {})
        try:
            frames = _frames(plan, stack)
            result = _Run(plan, cluster, frames, say).play()
            wanted = keep(result)
        except Exception:
            _keep_nodes(cluster, plan.folder / NODES, say)
            raise
        if wanted:
            result.kept = _keep_nodes(cluster, plan.folder / NODES, say)
        return result


def _frames(plan: Plan, stack: contextlib.ExitStack) -> Frames | None:
    """What has requests arrive late, where that is wanted and there are transactions."""
    if not PLAYS[plan.workload].producers or LATE not in kinds(plan.faults):
        return None
    errors = stack.enter_context((plan.folder / WORKERS_LOG).open("ab"))
    frames = Frames(errors)
    stack.callback(frames.close)
    return frames


def _keep_nodes(cluster: Cluster | None, folder: Path, say: Say) -> Path | None:
    if cluster is None:
        return None
    missing = keep_nodes(cluster.nodes.values(), folder)
    say(f"what the nodes left is in {folder}" + "".join(f"; not {each}" for each in missing[:5]))
    return folder


class _Run:
    def __init__(
        self, plan: Plan, cluster: Cluster | None, frames: Frames | None, say: Say
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._say = say
        self._play = PLAYS[plan.workload]
        self._bootstrap = plan.bootstrap if cluster is None else cluster.bootstrap
        self._frames = frames
        through = self._bootstrap if frames is None else frames.in_front_of(self._bootstrap)
        self._clients = list(plan.clients) or clients.available()
        self._fault_ids = 0
        self._result = Result()
        # Unique, so that a cluster that is there anyway can be tested again and again.
        name = f"{plan.workload}-{int(time.time())}-{os.getpid()}"
        self._options = self._play.options(name, plan.time_limit_s)
        self._options["concurrency"] = plan.concurrency
        self._options["claims"] = not plan.bootstrap or peer.takes_claims(plan.bootstrap)
        self._topics = dict(self._play.topics(self._options))
        self._history = HistoryWriter(plan.history, self._header())
        self._rest: Rest | None = None
        self._crew = Crew(
            plan,
            self._clients,
            through,
            self._options,
            self._topics,
            self._history,
            self._result,
            say,
        )

    def play(self) -> Result:
        with self._history:
            try:
                self._set_up()
                self._history.phase("load")
                self._say(f"{self._plan.workload}: load for {self._plan.time_limit_s:g} s")
                self._crew.start()
                if self._play.members:
                    self._rest = self._make_rest()
                with self._observers():
                    self._break_and_heal(time.monotonic() + self._plan.time_limit_s)
                self._dismiss()
                self._settle()
                self._history.phase("final")
                self._say("reading everything")
                self._crew.start_final()
                self._crew.wait_for_final()
                self._inspect()
            finally:
                self._crew.dismiss(0.0)
                if self._rest is not None:
                    self._rest.close()
        return self._result

    def _make_rest(self) -> Rest:
        return Rest(
            self._bootstrap,
            [(topic, i) for topic, count in self._topics.items() for i in range(count)],
            self._plan.history,
            self._history,
            self._crew.new_processes(1),
            self._crew.members,
            lambda: self._crew.watch_until(time.monotonic() + _LOOK_EVERY_S),
        )

    def _dismiss(self) -> None:
        """Has all workers finish; members of groups when they have come to rest and are done."""
        rest, groups = self._rest, sorted(self._crew.members())
        if rest is None or self._result.unhealthy:
            self._crew.dismiss(_STOP_TIMEOUT_S)
            return
        self._say("waiting until all groups are at rest, and have processed everything")
        self._crew.stay()
        self._crew.dismiss_first(_STOP_TIMEOUT_S)
        rest.settle()
        rest.drain()
        self._crew.dismiss(_STOP_TIMEOUT_S)
        rest.note_left(groups)

    def _break_and_heal(self, deadline: float) -> None:
        try:
            deadline = self._inflict(deadline)
        except ClusterError as error:
            self._not_healed(error)
        self._crew.watch_until(deadline)
        self._heal()
        self._crew.watch_until(time.monotonic() + _RECOVERY_S)

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
            "clients": self._clients,
            "roles": list(plan.roles),
            "sessions_per_client": SESSIONS_MAX,
            "tested": plan.bootstrap or f"kraftpy, {plan.nodes} nodes",
            "security": secured.own().protocol,
            "links": plan.network.text() if self._cluster is not None else "as they are",
            "left_out": dict(plan.left_out),
            "rests": bool(self._play.members),
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
        async with Connections(self._bootstrap, security=secured.own()) as connections:
            admin = Admin(connections, timeout_ms=int(_SETUP_TIMEOUT_S * 1000))
            configs = dict(self._play.configs)
            if self._options["claims"]:
                configs |= self._play.sharing_configs
            for topic, partitions in self._topics.items():
                await admin.create_topic(topic, partitions=partitions, configs=configs)
            for group, values in self._play.group_configs(self._options).items():
                await admin.alter_configs(group, values=values, resource_type=_GROUP_RESOURCE)

    def _inflict(self, deadline: float) -> float:
        """Until the deadline, which it returns: what takes calm groups comes on top of the time."""
        if self._cluster is None:
            return deadline
        for planned in schedule(self._plan.seed, self._plan.faults):
            begins_at = time.monotonic() + planned.wait_s
            if begins_at + planned.duration_s > deadline:
                break  # it would not end before the load does
            self._crew.watch_until(begins_at)
            self._inflict_one(self._cluster, planned)
            if any(FAULTS[name].calm for name in planned.names):
                deadline += max(0.0, time.monotonic() - begins_at - planned.duration_s)
            if planned.until_healthy:
                self._await_health(deadline - time.monotonic())
        return deadline

    def _inflict_one(self, cluster: Cluster, planned: Planned) -> None:
        """Begins a fault, lets it last, ends it; several that belong together at the same time."""
        rng = random.Random(planned.seed)  # noqa: S311 - has to be repeatable
        ground = Ground(
            cluster,
            self._topics,
            rng,
            planned.target,
            clients=self._crew.alive,
            frames=self._frames,
        )
        duration_s = max(planned.duration_s, *(FAULTS[name].least_s for name in planned.names))
        begun: list[tuple[int, str, Act, str]] = []
        calm = any(FAULTS[name].calm for name in planned.names)
        if calm:
            self._begin_calm()
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
        self._crew.watch_until(time.monotonic() + duration_s)
        if calm and self._rest is not None:
            self._rest.settle()
        for number, name, act, more in reversed(begun):
            act.end()
            self._crew.note_frozen()
            phase = "void" if isinstance(more, LeftOut) else "end"
            self._history.fault(name, phase, number, [str(node) for node in act.targets], more)
        for each in cluster.nodes.values():
            if each.running and each.ended:
                raise ClusterError(f"broker {each.id} ended by itself\n{cluster.log_tail()}")
        if calm:
            self._end_calm(cluster)

    def _begin_calm(self) -> None:
        if self._rest is not None:
            self._crew.stay()
            self._rest.settle()
            self._rest.begin_calm()

    def _end_calm(self, cluster: Cluster) -> None:
        """Until then whoever was to be thrown out by what happened has been."""
        if self._rest is not None:
            try:
                cluster.wait_healthy(HEALTHY_TIMEOUT_S)
                self._crew.watch_until(time.monotonic() + QUIET_S)
                self._rest.settle()
            finally:
                self._rest.end_calm()
                self._crew.go_on()

    def _await_health(self, timeout_s: float) -> None:
        """Goes on watching the workers until nothing is left of the last fault."""
        assert self._cluster is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self._cluster.wait_healthy(0.2)
                return
            except ClusterError:
                self._crew.watch_until(time.monotonic())

    def _settle(self) -> None:
        """Waits until every broker knows of the last that was done; a broken cluster is known."""
        if self._cluster is not None and not self._result.unhealthy:
            self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)

    def _observers(self) -> contextlib.AbstractContextManager[object]:
        if self._cluster is None or not self._play.inspected:
            return contextlib.nullcontext()
        from kraftpy.testing.consistency.inspection import Observers

        nodes = list(self._cluster.nodes.values())
        return Observers(nodes, self._topics, self._history, self._crew.new_processes(len(nodes)))

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
        inspect(folders, replicas, self._history, self._crew.new_processes(1))

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

"""One broker: the lives of its process, its disk, its registration and its copy of the metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata import MetadataState, PartitionState, Result
from kraftpy.core.replication import IsrProposal, Leadership, follower
from kraftpy.protocol.errors import ErrorCode
from tests.simulation.log import SimLog
from tests.simulation.processes import Process
from tests.simulation.replica import Fetch, FetchAnswer, Fetched, Name, ProduceAnswer, Replica

if TYPE_CHECKING:
    from kraftpy.protocol.record_batch import BatchHeader
    from tests.simulation.world import World

REGISTER_AGAIN_MS = 60.0
RENEW_AGAIN_MS, RENEW_PAUSE_MAX_MS = 200.0, 3_200.0


class Disk:
    """What a broker finds when it starts. `clean_epoch` is its clean-shutdown marker."""

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self.logs: dict[Name, SimLog] = {}
        self.watermarks: dict[Name, int] = {}
        self.clean_epoch = -1

    def lower_watermark(self, name: Name) -> None:
        """A log was cut: what it is given next must not be taken for committed after a restart."""
        end_offset = self.logs[name].log_end_offset
        if self.watermarks.get(name, 0) > end_offset:
            self.watermarks[name] = end_offset


class Broker(Process):
    """Its process comes and goes, its disk stays."""

    def __init__(self, world: World, id_: int) -> None:
        super().__init__()
        self.world = world
        self.id = id_
        self.wipes = 0
        self.disk = Disk(self._directory())
        self.epoch = -1
        self.applied = False  # has the metadata up to its registration
        self.metadata = MetadataState()
        self.active: dict[int, int] = {}
        self.replicas: dict[Name, Replica] = {}
        self.stopping = False
        self._requests = 0
        self._heard_ms = 0.0

    def _directory(self) -> bytes:
        return (self.id * 1000 + self.wipes + 1).to_bytes(16, "big")

    @property
    def registered(self) -> bool:
        return self.up and self.epoch >= 0

    @property
    def stepped_down(self) -> bool:
        """Nobody has heard of it for so long that others may lead (rule 21)."""
        silent_ms = self.world.schedule.now - self._heard_ms
        return silent_ms > self.world.config.session_timeout_ms

    # -- messages and timers

    def receive(self, life: int, message: Callable[..., None], args: tuple[Any, ...]) -> None:
        """A message to the process with this life arrives."""
        self.run(life, message, *args)

    # -- lives

    def start(self) -> None:
        """A process starts; it knows what its disk and an older snapshot say."""
        assert not self.up
        self.life += 1
        self.stopping = False
        self.epoch, self.applied = -1, False
        self.metadata = MetadataState.from_snapshot(self.world.snapshot)
        self.replicas, self.active = {}, {}
        for name, log in self.disk.logs.items():
            log.rebuild_producers()
            self.disk.lower_watermark(name)
        self.run(self.life, self._register, self.disk.clean_epoch)
        self.disk.clean_epoch = -1

    def kill(self) -> None:
        """kill -9: the process is gone, its page cache is not."""
        assert self.up
        self._end()
        self.world.quorum.connection_broke(self.id)

    def power_off(self) -> None:
        """As kill, and what wasn't synced is gone."""
        self.kill()
        self.world.invariants.may_have_lost(self.id, [
            name for name, log in self.disk.logs.items() if log.lose_unsynced()
        ])  # fmt: skip

    def wipe(self) -> None:
        """The disk of a stopped broker is replaced by an empty one."""
        assert not self.up
        names = list(self.disk.logs)
        self.wipes += 1
        self.disk = Disk(self._directory())
        self.world.invariants.may_have_lost(self.id, names)

    def _end(self) -> None:
        self.life += 1
        self.paused_until = 0.0
        for name, replica in self.replicas.items():
            # A checkpoint on disk is a hint, and older than the truth.
            if name not in self.disk.watermarks or self.world.rng.random() < 0.5:
                self.disk.watermarks[name] = replica.high_watermark
        self.replicas = {}

    def stop(self) -> None:
        """Controlled shutdown: leaderships move, then everything is flushed and marked clean."""
        if self.up and not self.stopping:
            self.stopping = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self.epoch < 0:
            self.kill()
            return
        life = self.life

        def answer(result: Result) -> None:
            if self.life != life:
                return
            if result.error is ErrorCode.NONE and result.value["remaining"] == 0:
                self._stopped()

        command = {"type": "begin_shutdown", "broker_id": self.id, "broker_epoch": self.epoch}
        self._propose(command, answer)
        self.world.schedule.after(100.0, self.run, life, self._shut_down_again)

    def _shut_down_again(self) -> None:
        if self.stopping:
            self._shut_down()

    def _stopped(self) -> None:
        for log in self.disk.logs.values():
            log.flush()
        self.disk.clean_epoch = self.epoch
        self._end()
        self.world.quorum.connection_broke(self.id)
        self.world.note(f"broker {self.id} stopped")

    # -- registration and heartbeats

    def _propose(self, command: dict[str, Any], answer: Callable[[Result], None]) -> object:
        self._requests += 1
        request = (self.id, self.life, self._requests)
        self.world.quorum.propose(self.id, request, command, answer)
        return request

    def _register(self, clean_epoch: int) -> None:
        if self.epoch >= 0:
            return
        life = self.life

        def answer(result: Result) -> None:
            if self.life == life and result.error is ErrorCode.NONE and self.epoch < 0:
                self.epoch = result.value["broker_epoch"]
                self._heard_ms = self.world.schedule.now
                self._serve()
                self._tick()

        self._propose(self.world.registration(self, clean_epoch), answer)
        self.world.schedule.after(REGISTER_AGAIN_MS, self.run, life, self._register, clean_epoch)

    def _tick(self) -> None:
        """Heartbeats, ISR changes, and now and then the system's own writing back of pages."""
        world, quorum = self.world, self.world.quorum
        world.schedule.after(world.config.tick_ms, self.run, self.life, self._tick)
        if quorum.active is not None:
            world.network.send(self.id, quorum.active, quorum.heartbeat, self.id, self.epoch)
        for replica in self.replicas.values():
            replica.propose()
            if world.rng.random() < world.config.write_back:
                replica.log.flush()

    def superseded(self, epoch: int) -> None:
        """Another life has registered since: a late command of a dead one, or a second process."""
        if self.epoch == epoch:
            self.kill()
            self.world.schedule.after(REGISTER_AGAIN_MS, self._start_again, self.life)

    def _start_again(self, life: int) -> None:
        if self.life == life:
            self.start()

    def heartbeat_answered(self, committed_index: int) -> None:
        self._heard_ms = self.world.schedule.now
        self.hear_of(committed_index)
        me = self.metadata.brokers.get(self.id)
        if self.applied and me is not None and me.fenced and not self.stopping:
            command = {"type": "unfence_broker", "broker_id": self.id}
            self._propose(command | {"broker_epoch": self.epoch}, lambda _: None)

    # -- metadata

    def hear_of(self, index: int) -> None:
        """The committed log is known up to `index`; all that is new is taken over at once."""
        quorum, metadata = self.world.quorum, self.metadata
        if index <= metadata.applied_index:
            return
        while metadata.applied_index < index:
            metadata.apply(metadata.applied_index + 1, quorum.log[metadata.applied_index])
        self.world.invariants.metadata_applied(self.id, metadata)
        self._serve()

    def _serve(self) -> None:
        """Takes the roles that the metadata gives, once it is known up to the registration."""
        if self.epoch < 0 or self.metadata.applied_index < self.epoch:
            return
        self.applied = True
        self.active.clear()
        self.active.update(
            (each.id, each.epoch) for each in self.metadata.brokers.values() if each.active
        )
        self._take_roles()

    def _take_roles(self) -> None:
        wanted: dict[Name, PartitionState] = {
            (topic.name, index): state
            for topic in self.metadata.topics.values()
            for index, state in topic.partitions.items()
            if self.id in state.replicas
        }
        for name in [name for name in self.replicas if name not in wanted]:
            self.replicas.pop(name).resign()
            self._forget(name)
        for name in [name for name in self.disk.logs if name not in wanted]:
            self._forget(name)
        for name, state in wanted.items():
            replica = self.replicas.get(name)
            if (
                replica is not None
                and replica.damaged
                and follower.may_begin_anew(state, self.id, replica.leader_epoch)
            ):
                self.world.note(f"broker {self.id} begins {name} anew")
                self.world.invariants.begins_anew(self.id, name)
                self.replicas.pop(name).resign()
                self._forget(name)
                replica = None
            if replica is None:
                log = self.disk.logs.get(name)
                if log is None:
                    log = self.disk.logs[name] = SimLog()
                watermark = self.disk.watermarks.get(name, 0)
                replica = self.replicas[name] = self.world.replica_of(name)(
                    self, name, log, watermark
                )
            replica.follow_metadata(state)

    def _forget(self, name: Name) -> None:
        self.disk.logs.pop(name, None)
        self.disk.watermarks.pop(name, None)

    def renew(self, replica: Replica, again_ms: float = RENEW_AGAIN_MS) -> None:
        """Asks to begin a damaged replica anew, until that is done; each time later.

        Where all are damaged, each hands the lead to the next one.
        """
        topic = self.metadata.topics.get(replica.name[0])
        if self.replicas.get(replica.name) is not replica or topic is None:
            return
        partition = {"index": replica.name[1], "leader_epoch": replica.leader_epoch}
        command = {
            "type": "renew_replicas",
            "broker_id": self.id,
            "broker_epoch": self.epoch,
            "topics": [{"topic_id": topic.id, "partitions": [partition]}],
        }
        self._propose(command, lambda _: None)
        later_ms = min(2 * again_ms, RENEW_PAUSE_MAX_MS)
        self.world.schedule.after(again_ms, self.run, self.life, self.renew, replica, later_ms)

    # -- requests

    def alter_partition(self, replica: Replica, role: Leadership, proposal: IsrProposal) -> None:
        """Sends a proposal; if no answer comes its outcome is unknown."""
        life, answered = self.life, False
        topic = self.metadata.topics[replica.name[0]]
        command = alter_partition_command(self.id, self.epoch, topic.id, replica.name[1], proposal)

        def answer(result: Result) -> None:
            nonlocal answered
            if answered or self.life != life:
                return
            answered = True
            error = result.error
            if error is ErrorCode.NONE:
                (item,) = result.value["topics"][0]["partitions"]
                error = ErrorCode(item["error"])
            replica.proposal_answered(role, proposal, error)

        def give_up() -> None:
            nonlocal answered
            if not answered:
                answered = True
                replica.proposal_answered(role, proposal, None)

        self._propose(command, lambda result: self.run(life, answer, result))
        self.world.schedule.after(self.world.config.proposal_timeout_ms, self.run, life, give_up)

    def fetch_arrived(self, name: Name, fetch: Fetch, answer: FetchAnswer) -> None:
        replica = self.replicas.get(name)
        if replica is None:
            answer(Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            replica.fetch_arrived(fetch, answer)

    def produce_arrived(
        self, name: Name, header: BatchHeader, values: tuple[object, ...], answer: ProduceAnswer
    ) -> None:
        replica = self.replicas.get(name)
        if replica is None:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            replica.produce(header, values, answer)


def alter_partition_command(
    broker_id: int, broker_epoch: int, topic_id: bytes, index: int, proposal: IsrProposal
) -> dict[str, Any]:
    partition = {
        "index": index,
        "leader_epoch": proposal.leader_epoch,
        "partition_epoch": proposal.partition_epoch,
        "isr": [{"broker_id": id_, "broker_epoch": epoch} for id_, epoch in proposal.isr],
    }
    return {
        "type": "alter_partition",
        "broker_id": broker_id,
        "broker_epoch": broker_epoch,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
    }

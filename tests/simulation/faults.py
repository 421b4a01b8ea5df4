"""What goes wrong: each seed has its own mixture, so that the rare ones get their runs too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.core.replication import Leadership

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.broker import Broker
    from tests.simulation.world import World


class Faults:
    """Until `heal`, something happens every now and then."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        kinds: list[Callable[[], None]] = [
            self.kill, self.kill, self.kill, self.power_cut, self.stop, self.pause, self.pause,
            self.cut_link, self.cut_link, self.isolate, self.depose_controller, self.lossy_network,
            self.reassign, self.cancel_reassignment, self.prefer, self.change_min_isr,
            self.delete_records, self.find_damage,
        ]  # fmt: skip
        if world.config.reckless:
            kinds += [self.power_cut_of_several, self.replace_disk, self.elect_unclean]
        self.kinds = [kind for kind in kinds if self.rng.random() < 0.6] or [self.kill]
        self.active = True

    def start(self) -> None:
        if self.active:
            self.world.schedule.after(
                self.rng.expovariate(1 / self.world.config.fault_every_ms), self._next
            )

    def _next(self) -> None:
        if self.active:
            kind = self.rng.choice(self.kinds)
            self.world.note(f"-- {kind.__name__}")
            kind()
            self.start()

    def heal(self) -> None:
        """Nothing goes wrong any more, and what is broken is mended."""
        self.active = False
        self.world.network.heal()
        for broker in self.world.brokers.values():
            broker.paused_until = 0.0
            if not broker.up:
                broker.start()

    def _broker(self, *, up: bool = True) -> Broker | None:
        found = [each for each in self.world.brokers.values() if each.up == up]
        return self.rng.choice(found) if found else None

    def _later(self, function: Callable[..., None], *args: object) -> None:
        self.world.schedule.after(self.rng.uniform(20, 900), function, *args)

    # -- processes and machines

    def _restart(self, broker: Broker) -> None:
        if not broker.up:
            self.world.note(f"broker {broker.id} starts")
            broker.start()

    def kill(self) -> None:
        broker = self._broker()
        if broker is not None:
            self.world.note(f"kill broker {broker.id}")
            broker.kill()
            self._later(self._restart, broker)

    def power_cut(self) -> None:
        broker = self._broker()
        if broker is not None:
            self.world.note(f"power cut at broker {broker.id}")
            broker.power_off()
            self._later(self._restart, broker)

    def power_cut_of_several(self) -> None:
        for broker in self.world.brokers.values():
            if broker.up and self.rng.random() < 0.7:
                broker.power_off()
                self._later(self._restart, broker)

    def replace_disk(self) -> None:
        broker = self._broker()
        if broker is not None and self.rng.random() < 0.5:
            self.world.note(f"broker {broker.id} gets an empty disk")
            broker.kill()
            broker.wipe()
            self._later(self._restart, broker)

    def stop(self) -> None:
        broker = self._broker()
        if broker is not None:
            self.world.note(f"stop broker {broker.id}")
            broker.stop()
            self._later(self._restart_stopped, broker)

    def _restart_stopped(self, broker: Broker) -> None:
        if broker.up and broker.stopping:
            broker.kill()  # whoever waits for it lost patience
        self._restart(broker)

    def pause(self) -> None:
        broker = self._broker()
        if broker is not None:
            for_ms = self.rng.uniform(50, 1500)
            self.world.note(f"pause broker {broker.id} for {for_ms:.0f} ms")
            until = self.world.schedule.now + for_ms
            broker.paused_until = max(broker.paused_until, until)

    def find_damage(self) -> None:
        """A broker finds that its disk has damaged a replica, which it may lead."""
        broker = self._broker()
        if broker is not None and broker.replicas:
            replica = self.rng.choice([broker.replicas[name] for name in sorted(broker.replicas)])
            if not replica.damaged:
                self.world.note(f"broker {broker.id} finds damage in {replica.name}")
                replica.damaged = True
                broker.renew(replica)

    # -- network and quorum

    def cut_link(self) -> None:
        one, other = self.rng.sample(sorted(self.world.brokers), 2)
        links = {(one, other)} if self.rng.random() < 0.4 else {(one, other), (other, one)}
        self._cut(links)

    def isolate(self) -> None:
        one = self.rng.choice(sorted(self.world.brokers))
        others = [id_ for id_ in self.world.brokers if id_ != one]
        self._cut({(one, id_) for id_ in others} | {(id_, one) for id_ in others})

    def _cut(self, links: set[tuple[int, int]]) -> None:
        self.world.note(f"cut {sorted(links)}")
        self.world.network.cut |= links
        self._later(self.world.network.cut.difference_update, links)

    def lossy_network(self) -> None:
        network = self.world.network
        network.loss, network.duplication = self.rng.choice([(0.1, 0.0), (0.0, 0.3), (0.05, 0.1)])
        self._later(self._reliable_network)

    def _reliable_network(self) -> None:
        self.world.network.loss = self.world.network.duplication = 0.0

    def depose_controller(self) -> None:
        self.world.quorum.depose()

    # -- what administrators do

    def reassign(self) -> None:
        world = self.world
        name, index = self.rng.choice(world.names())
        size = len(world.partition((name, index)).replicas)
        size = max(1, min(size + self.rng.choice([-1, 0, 0, 1]), len(world.brokers)))
        known = sorted(world.quorum.state.brokers)
        target = self.rng.sample(known, min(size, len(known)))
        self._alter_reassignment(name, index, target)

    def cancel_reassignment(self) -> None:
        name, index = self.rng.choice(self.world.names())
        self._alter_reassignment(name, index, None)

    def _alter_reassignment(self, name: str, index: int, replicas: list[int] | None) -> None:
        partition = {"index": index, "replicas": replicas}
        topics = [{"name": name, "partitions": [partition]}]
        self.world.quorum.ask({"type": "alter_reassignments", "topics": topics})

    def prefer(self) -> None:
        self.world.quorum.ask({"type": "elect_leaders", "election_type": 0})

    def elect_unclean(self) -> None:
        if self.rng.random() < 0.15:
            self.world.quorum.ask({"type": "elect_leaders", "election_type": 1})

    def change_min_isr(self) -> None:
        name, _ = self.rng.choice(self.world.names())
        self.world.set_config(name, "min.insync.replicas", str(self.rng.randint(1, 3)))

    def delete_records(self) -> None:
        """A leader's log start moves, as with retention or DeleteRecords."""
        name = self.rng.choice(self.world.names())
        if name[0] == self.world.DATA:
            leader = self.world.brokers.get(self.world.partition(name).leader)
            replica = None if leader is None else leader.replicas.get(name)
            if replica is not None and isinstance(replica.role, Leadership):
                before = replica.role.high_watermark - self.rng.randint(0, 30)
                batch = replica.log.batch_before(max(before, 1))
                if batch is not None and batch.end_offset <= replica.role.high_watermark:
                    replica.log.advance_log_start(batch.end_offset)

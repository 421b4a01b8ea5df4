"""Stories about replication, told by scripts in scenarios/*.txt.

A script has commands, each followed by what comes of it, indented; lines with # are for the reader.
Nothing happens by itself: no timer runs, a message arrives at once, and metadata when `learn` says
so. The invariants of the simulation hold here too.

    brokers 3                   as many brokers, all active; broker 1 has the controller
    topic 1 2 3 min-isr 2       the partition with its replicas; also: unclean
    write 1 a b                 each a batch with acks=all, to broker 1
    fetch 2 3                   one fetch of follower 2 with its answer, then one of 3
    wait 500                    ms pass; leaders look for replicas that lag or may join
    sleep 500                   ms pass in which nobody runs
    hold, release               from now on proposals wait on their way; now they arrive
    deaf 1, learn 1             broker 1 doesn't hear of new metadata; now it does
    fence 1, unfence 1          what the controller may do
    kill 1, power-cut 1, start 1
    sync 1                      what broker 1 has is on disk
    min-isr 1, reassign 2 3, elect unclean
    logs                        all replicas, with their high watermarks

`python -m tests.simulation.scenario` writes what comes of the commands into the files anew.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kraftpy.core.metadata import Result
from kraftpy.core.replication import Following, Leadership
from kraftpy.protocol.errors import ErrorCode
from tests.simulation import divergence
from tests.simulation.broker import Broker
from tests.simulation.log import header_of
from tests.simulation.network import Message, Network
from tests.simulation.quorum import Answer, Quorum
from tests.simulation.replica import Fetched, Replica
from tests.simulation.world import Config, World

FOLDER = Path(__file__).parent / "scenarios"
PARTITION = (World.DATA, 0)
LAG_MAX_MS = 1000
TICK_MS = 100.0


class _Network(Network):
    """Everything arrives at once; only metadata can be kept from a broker."""

    def __init__(self, world: World) -> None:
        super().__init__(world.schedule, 1.0, 0.0, 0.0)
        self.deaf: set[int] = set()
        self.answer: Fetched | None = None  # the last one to a follower's fetch

    def to_broker(self, source: int, broker: Broker, message: Message, *args: Any) -> None:
        if message.__name__ == "_fetched":
            self.answer = args[1]
        if broker.up and not (message.__name__ == "hear_of" and broker.id in self.deaf):
            broker.receive(broker.life, message, args)

    def send(self, source: int, target: int, message: Message, *args: Any) -> None:
        message(*args)


class _Quorum(Quorum):
    """Commits a proposal when it arrives, unless proposals are held."""

    held: list[Callable[[], None]] | None = None
    said: list[str]

    def propose(self, node: int, request: object, command: dict[str, Any], answer: Answer) -> None:
        def arrive() -> None:
            result = self.apply(command)
            if command["type"] == "alter_partition" and result.error is ErrorCode.NONE:
                (item,) = result.value["topics"][0]["partitions"]
                if item["error"]:
                    self.said.append(f"{node}'s proposal: {ErrorCode(item['error']).name}")
            answer(result)

        if self.held is not None and command["type"] == "alter_partition":
            self.held.append(arrive)
        else:
            arrive()

    def heartbeat(self, broker_id: int, broker_epoch: int) -> None:
        network = self.world.network
        assert isinstance(network, _Network)
        if broker_id not in network.deaf:
            super().heartbeat(broker_id, broker_epoch)


class Scenario:
    """Carries out one script; `said` collects what came of the current command."""

    def __init__(self) -> None:
        config = replace(
            Config.draw(random.Random(0)),
            brokers=1,
            flush_each=False,
            write_back=0.0,
            lag_max_ms=LAG_MAX_MS,
            session_timeout_ms=1e9,
        )
        self.world = World(0, config)
        self.world.brokers.clear()
        self.network = self.world.network = _Network(self.world)
        self.quorum = self.world.quorum = _Quorum(self.world, [1])
        self.quorum.raise_level()
        self.said: list[str] = []
        self._told = ""

    def run(self, line: str) -> list[str]:
        """What comes of one command."""
        self.said = self.quorum.said = []
        name, *words = line.split()
        getattr(self, "do_" + name.replace("-", "_"))(words)
        for broker in self.world.brokers.values():
            for replica in broker.replicas.values():
                replica.parked.clear()
        self._tell_state()
        return self.said

    def _tell_state(self) -> None:
        """The controller's state of the partition, when it has changed."""
        if self.world.DATA not in self.quorum.state.topics:
            return
        state = self.world.partition(PARTITION)
        leader = f"leader {state.leader} in epoch {state.leader_epoch}"
        sets = {"replicas": state.replicas, "ISR": state.isr, "ELR": state.elr}
        parts = [leader] + [f"{name} {_ids(ids)}" for name, ids in sets.items()]
        if state.last_known_elr:
            parts.append(f"led last by {_ids(state.last_known_elr)}")
        told = ", ".join(parts)
        if told != self._told:
            self._told = told
            self.said.append(told)

    def _brokers(self, words: list[str]) -> list[Broker]:
        return [self.world.brokers[int(word)] for word in words]

    def _replica(self, broker: Broker) -> Replica:
        return broker.replicas[PARTITION]

    # -- brokers

    def do_brokers(self, words: list[str]) -> None:
        for id_ in range(1, int(words[0]) + 1):
            self.world.brokers[id_] = Broker(self.world, id_)
            self.world.brokers[id_].start()

    def do_start(self, words: list[str]) -> None:
        for broker in self._brokers(words):
            broker.start()

    def do_kill(self, words: list[str]) -> None:
        for broker in self._brokers(words):
            broker.kill()

    def do_power_cut(self, words: list[str]) -> None:
        for broker in self._brokers(words):
            log = self.world.log_of(broker.id, PARTITION)
            before = log.log_end_offset
            broker.power_off()
            lost = before - log.log_end_offset
            self.said.append(f"{broker.id} loses {lost} records")

    def do_sync(self, words: list[str]) -> None:
        for broker in self._brokers(words):
            self._replica(broker).log.flush()

    def do_sleep(self, words: list[str]) -> None:
        self.world.schedule.now += float(words[0])

    def do_wait(self, words: list[str]) -> None:
        left_ms = float(words[0])
        while left_ms > 0:
            self.world.schedule.now += min(left_ms, TICK_MS)
            left_ms -= TICK_MS
            for broker in self.world.brokers.values():
                for replica in broker.replicas.values():
                    replica.propose()

    # -- the controller

    def _ask(self, command: dict[str, Any]) -> Result:
        result = self.quorum.ask(command)
        if result.error is not ErrorCode.NONE:
            self.said.append(result.error.name)
        return result

    def do_topic(self, words: list[str]) -> None:
        replicas = [int(word) for word in words if word.isdigit()]
        configs = {}
        if "min-isr" in words:
            configs["min.insync.replicas"] = words[words.index("min-isr") + 1]
            replicas.pop()
        if "unclean" in words:
            configs["unclean.leader.election.enable"] = "true"
        topic = {"name": World.DATA, "topic_id": bytes(12) + b"data", "configs": configs}
        topic["assignments"] = [replicas]
        self._ask({"type": "create_topics", "seed": 0, "topics": [topic]})

    def _on_broker(self, kind: str, words: list[str]) -> None:
        for broker in self._brokers(words):
            epoch = self.quorum.state.brokers[broker.id].epoch
            self._ask({"type": kind, "broker_id": broker.id, "broker_epoch": epoch})

    def do_fence(self, words: list[str]) -> None:
        self._on_broker("fence_broker", words)

    def do_unfence(self, words: list[str]) -> None:
        self._on_broker("unfence_broker", words)

    def do_min_isr(self, words: list[str]) -> None:
        self.world.set_config(World.DATA, "min.insync.replicas", words[0])

    def do_reassign(self, words: list[str]) -> None:
        partition = {"index": 0, "replicas": [int(word) for word in words]}
        topics = [{"name": World.DATA, "partitions": [partition]}]
        self._ask({"type": "alter_reassignments", "topics": topics})

    def do_elect(self, words: list[str]) -> None:
        self._ask({"type": "elect_leaders", "election_type": int(words == ["unclean"])})

    def do_hold(self, _: list[str]) -> None:
        self.quorum.held = []

    def do_release(self, _: list[str]) -> None:
        held, self.quorum.held = self.quorum.held or [], None
        for arrive in held:
            arrive()

    def do_deaf(self, words: list[str]) -> None:
        self.network.deaf.update(int(word) for word in words)

    def do_learn(self, words: list[str]) -> None:
        self.network.deaf.difference_update(int(word) for word in words)
        for broker in self._brokers(words):
            broker.hear_of(self.quorum.committed_index)

    # -- the data path

    def do_write(self, words: list[str]) -> None:
        (broker,) = self._brokers(words[:1])
        for value in words[1:]:

            def answer(error: ErrorCode, offset: int, value: str = value) -> None:
                outcome = f"acknowledged at {offset}" if error is ErrorCode.NONE else error.name
                self.said.append(f"{value}: {outcome}")
                if error is ErrorCode.NONE:
                    self.world.invariants.was_acknowledged(PARTITION, offset, ((value, 0),))

            broker.produce_arrived(PARTITION, header_of(1), ((value, 0),), answer)

    def do_fetch(self, words: list[str]) -> None:
        for broker in self._brokers(words):
            replica = self._replica(broker)
            offset, epoch = replica.log.log_end_offset, replica.log.leader_epochs.latest
            assert isinstance(replica.role, Following), f"{replica} follows nobody"
            self.network.answer = None
            replica.fetch(replica.role)
            answer = self.network.answer
            said = "nothing new" if answer is None else _answer(answer)
            self.said.append(f"{broker.id} fetches {offset} after epoch {epoch}: {said}")

    def do_logs(self, _: list[str]) -> None:
        for broker in self.world.brokers.values():
            log = self.world.log_of(broker.id, PARTITION)
            records = " ".join(f"{each.values[0][0]}@{each.epoch}" for each in log.batches)  # type: ignore[index]
            line = f"{broker.id}: {records or 'nothing'}"
            replica = broker.replicas.get(PARTITION)
            if replica is not None:
                line += f", watermark {replica.high_watermark}"
                if isinstance(replica.role, Leadership):
                    line += f", leads epoch {replica.leader_epoch}"
                    waits_for = _ids(sorted(replica.role.maximal_isr))
                    line += f" and waits for {waits_for}"
            self.said.append(line if broker.up else line + ", down")


def _ids(ids: Any) -> str:
    return " ".join(map(str, ids)) or "-"


def _answer(fetched: Fetched) -> str:
    if fetched.error:
        return fetched.error.name
    if fetched.diverging is not None:
        epoch, end_offset = fetched.diverging
        return f"diverges, epoch {epoch} ends at {end_offset}"
    records = " ".join(f"{each.values[0][0]}@{each.epoch}" for each in fetched.batches)  # type: ignore[index]
    return f"{records or 'nothing new'}, watermark {fetched.high_watermark}"


def played(script: str) -> str:
    """The script with what really came of its commands."""
    scenario = Scenario()
    lines = []
    for line in script.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += ["    " + said for said in scenario.run(line)]
    return "\n".join(lines) + "\n"


def player_of(path: Path) -> Callable[[str], str]:
    """What carries out the script of this name."""
    return divergence.played if path.stem == "divergence" else played


def main() -> int:
    for path in sorted(FOLDER.glob("*.txt")):
        path.write_text(player_of(path)(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

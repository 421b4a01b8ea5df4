"""`make connect`: Kafka Connect and MirrorMaker 2, as they are, on brokers that are killed.

* A worker of Connect (distributed mode, exactly once for sources) carries the lines of a file into
  a topic, and from there into another file, while each of three nodes is killed with -9 in turn,
  and the worker, too. Whoever reads committed records has to find each line once, in its order; the
  second file has each, as sinks write at least once.
* MirrorMaker 2 mirrors two clusters into each other, topics and where groups stand in them. Each
  copy has to have the values of its topic, partition by partition and in their order.

`--kafka` has the second of these clusters be Apache Kafka's, `--lines` says how many there are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.process import BrokerError
from tests import programs
from tests.apache_kafka import ApacheKafka, fetch_broker_jars, fetch_connect_jars, java
from tests.connect import mirror_maker
from tests.connect.mirror_maker import write_properties
from tests.processes import Broker, Kraftpy, Process, free_port, running
from tests.quorums import KraftpyQuorum
from tests.quorums import running as running_quorum

TOPIC = "lines"
TIMEOUT_S = 120.0
_JVM = "-Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def say(text: str) -> None:
    print(text, flush=True)


def wait_for(what: str, is_so: Callable[[], bool]) -> float:
    """Returns after how many seconds it was; BrokerError if that takes too long."""
    started_at = time.monotonic()
    while not is_so():
        if time.monotonic() > started_at + TIMEOUT_S:
            raise BrokerError(f"not within {TIMEOUT_S:.0f} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - started_at


# -- Connect


class Worker:
    """One worker of Connect's distributed mode; it comes back on the same port."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._folder = folder
        self._address = f"http://127.0.0.1:{free_port()}"
        properties: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "listeners": self._address,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": 500,
        }
        for kind in ("config", "offset", "status"):
            properties[f"{kind}.storage.topic"] = f"connect-{kind}"
            properties[f"{kind}.storage.replication.factor"] = 3
        self._config = write_properties(folder / "worker.properties", properties)
        self._process: Process | None = None

    def start(self) -> None:
        name = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = java(fetch_connect_jars(), name, str(self._config), jvm=_JVM)
        self._process = Process(command, self._folder / "worker.log")
        wait_for("the worker answers", lambda: self.ask("/connectors") is not None)

    def kill(self) -> None:
        assert self._process is not None
        self._process.popen.kill()
        self._process.popen.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def ask(self, path: str, content: object = None) -> object:
        """What it answers; None if it doesn't, or not now."""
        data = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._address + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except OSError:  # among these urllib's own: it begins, or has no leader yet
            return None

    def add(self, name: str, **config: object) -> None:
        content = {
            "name": name,
            "config": {key.replace("_", "."): str(each) for key, each in config.items()},
        }
        wait_for(f"{name} is taken", lambda: self.ask("/connectors", content) is not None)


def committed_lines(bootstrap: str, topic: str, partition: int = 0) -> list[str]:
    """All that a reader of committed records finds in a partition, in its order."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found: list[str] = []
    try:
        reader.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value().decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
    finally:
        reader.close()
    raise BrokerError(f"{topic}-{partition} has no end")


def connect(folder: Path, count: int) -> bool:
    quorum = KraftpyQuorum(folder)
    source, sink = folder / "source.txt", folder / "sink.txt"
    source.touch()
    worker = Worker(quorum.bootstrap, folder)
    with ExitStack() as stack:
        stack.enter_context(running_quorum(quorum))
        admin = AdminClient({"bootstrap.servers": quorum.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(TIMEOUT_S)
        stack.callback(worker.stop)
        worker.start()
        streams = "org.apache.kafka.connect.file.FileStream"
        worker.add("source", connector_class=streams + "SourceConnector", file=source, topic=TOPIC)
        worker.add("sink", connector_class=streams + "SinkConnector", file=sink, topics=TOPIC)
        lines: list[str] = []

        def carry(what: str) -> None:
            """Has a part of the lines written, after that has happened."""
            more = [f"line {len(lines) + number}" for number in range(count // 5)]
            lines.extend(more)
            with source.open("a") as file:
                file.writelines(f"{line}\n" for line in more)
            wanted = set(lines)
            seconds = wait_for(
                "the sink has written all", lambda: wanted <= set(sink.read_text().split("\n"))
            )
            say(f"  {what}: {len(more)} more lines are in the second file {seconds:.1f} s later")

        sink.touch()
        carry("both connectors run")
        for node in quorum.addresses:
            quorum.kill(node)
            carry(f"kill -9 of node {node}")
            quorum.restart(node)
            quorum.wait_in_sync()
        worker.kill()
        worker.start()
        carry("kill -9 of the worker, and a new one")
        found = committed_lines(quorum.bootstrap, TOPIC)
    exact = found == lines
    say(f"Connect: {len(lines)} lines, {'each once and in order' if exact else 'NOT exactly'}")
    return exact


# -- MirrorMaker 2


def written(topic: str, partition: int, count: int) -> list[str]:
    """The values of one of the two partitions of a topic of so many records."""
    return [f"{topic} {number}" for number in range(partition, count, 2)]


def produce(bootstrap: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(TIMEOUT_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for partition in range(2):
        for value in written(topic, partition, count):
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise BrokerError(f"{topic} couldn't be written")


def stand(bootstrap: str, group: str, topic: str, count: int) -> None:
    """Has a group read so much, and stand behind it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while count and time.monotonic() < deadline:
            count -= consumer.poll(1.0) is not None
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def offsets(bootstrap: str, group: str, topic: str) -> list[int]:
    """What the group has committed of the topic's two partitions."""
    asking = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
    )
    try:
        wanted = [confluent_kafka.TopicPartition(topic, each) for each in range(2)]
        return [each.offset for each in asking.committed(wanted, TIMEOUT_S)]
    finally:
        asking.close()


def ends(bootstrap: str, topic: str) -> list[int]:
    """The ends of its two partitions, -1 of a topic that isn't there."""
    asking = mirror_maker.asking_of(bootstrap)
    try:
        return mirror_maker.ends(asking, topic, 2, TIMEOUT_S)
    finally:
        asking.close()


def is_alike(bootstrap: str, topic: str, to: str, copy: str, count: int) -> bool:
    """Whether topic and copy have, partition by partition, what was written, and nothing else."""
    wanted = [written(topic, partition, count) for partition in range(2)]
    found = {
        name: [committed_lines(address, name, partition) for partition in range(2)]
        for name, address in ((topic, bootstrap), (copy, to))
    }
    for name, values in found.items():
        for partition in range(2):
            if values[partition] != wanted[partition]:
                say(f"  {name}-{partition} has NOT the values that were written, in their order")
    return all(values == wanted for values in found.values())


def mirror(folder: Path, other: Callable[[Path], Broker], count: int) -> bool:
    folders = {name: folder / name for name in ("one", "two")}
    for each in folders.values():
        each.mkdir()
    one, two = Kraftpy(folders["one"]), other(folders["two"])
    with ExitStack() as stack:
        for node in (one, two):
            stack.enter_context(running(node))
        addresses = {"one": one.bootstrap, "two": two.bootstrap}
        for name, address in addresses.items():
            produce(address, f"of-{name}", count)
        of_each = {
            "topics": "of-.*",
            "groups": "of-.*",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": 1,
            "emit.checkpoints.interval.seconds": 1,
            "refresh.topics.interval.seconds": 1,
            "refresh.groups.interval.seconds": 1,
        }
        ways = ("one->two", "two->one")
        process = mirror_maker.start(folder, addresses, ways, of_each, tasks=2, jvm=_JVM)
        stack.callback(process.stop)
        half, exact = count // 2, True
        for source, target in (("one", "two"), ("two", "one")):
            topic, copy = f"of-{source}", f"{source}.of-{source}"
            seconds = wait_for(
                f"{copy} has all",
                lambda copy=copy, to=addresses[target]: ends(to, copy) == [half] * 2,
            )
            say(f"  {topic} is in {target} as {copy}, {count} records, after {seconds:.1f} s")
            alike = is_alike(addresses[source], topic, addresses[target], copy, count)
            exact &= alike
            say(f"  and their values are {'the same' if alike else 'NOT the same'}")
            # Of records that come behind, so that there is a place to translate the offset to.
            stand(addresses[source], f"of-group-{source}", topic, count)
            seconds = wait_for(
                f"the group of {topic} stands there, too",
                lambda source=source, copy=copy, to=addresses[target]: (
                    offsets(to, f"of-group-{source}", copy) == [half] * 2
                ),
            )
            say(f"  and where its group stands, too, after {seconds:.1f} s")
        same = "the same values" if exact else "NOT the same values"
        say(f"MirrorMaker 2: {one.name} and {two.name}, both ways, {same}")
    return exact


def main() -> int:
    parser = argparse.ArgumentParser(prog="make connect", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="mirror with Apache Kafka")
    parser.add_argument("--lines", type=int, default=5_000)
    options = parser.parse_args()
    programs.require("make connect", *programs.APACHE_KAFKA)
    fetch_connect_jars()
    if options.kafka:
        fetch_broker_jars()
    with tempfile.TemporaryDirectory(prefix="kraftpy-connect-") as folder:
        parts = {name: Path(folder, name) for name in ("connect", "mirror")}
        for each in parts.values():
            each.mkdir()
        try:
            exact = connect(parts["connect"], options.lines)
            exact &= mirror(
                parts["mirror"], ApacheKafka if options.kafka else Kraftpy, options.lines
            )
        except BrokerError as error:
            say(f"failed: {error}")
            for log in sorted(Path(folder).glob("*/*.log")):
                say(f"{log.name}:\n{log.read_text()[-3000:]}")
            return 1
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())

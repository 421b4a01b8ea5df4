"""`make streams`: a Kafka Streams application counts exactly once while brokers go and come.

Two instances of CountingApplication.java, with `exactly_once_v2`, count the words that are written
to a topic all the while: through a rolling restart of the three nodes, kill -9 of each of them, and
kill -9 of an instance. They write down every count. So what a reader of committed records finds for
a word has to be 1, 2, 3 and so on, up to how often it was sent: nothing twice, nothing left out,
nothing in another order.

With `--at-least-once`, Streams' default, some may be counted twice, and none may be left out.

`--kafka` has it run with Apache Kafka's nodes, `--rounds` says how often all of that happens.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.process import BrokerError, LineProcess
from tests import programs
from tests.apache_kafka import ApacheKafkaQuorum, fetch_broker_jars, fetch_streams_jars
from tests.quorums import KraftpyQuorum, Quorum, running

SOURCE, TARGET = "words", "counts"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"
PARTITIONS = 4
WORDS = 12
RATE = 200
"""Records a second."""
INSTANCES = 2
TIMEOUT_S = 180.0
APPLICATION = Path(__file__).with_name("CountingApplication.java")
_OPTIONS = ["-Xmx256m", "-XX:+UseSerialGC"]


def say(text: str) -> None:
    print(text, flush=True)


class Words:
    """A thread that writes words; `sent` is how often each was."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: collections.Counter[str] = collections.Counter()
        self._refused: list[str] = []
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._over.wait(1 / RATE):
            word = f"word{number % WORDS}"
            number += 1
            self.sent[word] += 1
            self._producer.produce(SOURCE, f"{word} {number}", on_delivery=self._on_delivery)
            self._producer.poll(0)

    def _on_delivery(self, error: object, _message: object) -> None:
        if error is not None:
            self._refused.append(str(error))

    def end(self) -> None:
        """Returns when all that was sent is written; BrokerError if something isn't."""
        self._over.set()
        self._thread.join()
        left = self._producer.flush(TIMEOUT_S)
        if left or self._refused:
            raise BrokerError(f"{left} words unanswered, refused: {self._refused[:3]}")


class Counts:
    """What a reader of committed records has found of the counts."""

    def __init__(self, bootstrap: str, guarantee: str) -> None:
        self.last: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self._guarantee = guarantee
        self._reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._reader.assign(
            [confluent_kafka.TopicPartition(TARGET, each, 0) for each in range(PARTITIONS)]
        )

    def read(self, timeout_s: float) -> bool:
        """Takes the next count; whether one came."""
        message = self._reader.poll(timeout_s)
        if message is None or message.error() is not None:
            return False
        word, count = message.key().decode(), int.from_bytes(message.value())
        if self._guarantee == AT_LEAST_ONCE:
            count = max(count, self.last[word])
        elif count != self.last[word] + 1:
            self.wrong.append(f"{word}: {count} comes after {self.last[word]}")
        self.last[word] = count
        return True

    def wait_for(self, words: collections.Counter[str], instances: list[Instance]) -> float:
        """Until all of these are counted; the seconds. BrokerError: an instance ends, too long."""
        started_at = time.monotonic()
        while any(self.last[word] < count for word, count in words.items()):
            self.read(0.2)
            for each in instances:
                each.check()
            if time.monotonic() > started_at + TIMEOUT_S:
                missing = words - self.last
                raise BrokerError(f"not counted in {TIMEOUT_S:.0f} s: {missing}")
        return time.monotonic() - started_at

    def close(self) -> None:
        self._reader.close()


class Instance:
    """One process of the application, with two threads."""

    def __init__(self, bootstrap: str, folder: Path, guarantee: str) -> None:
        folder.mkdir(exist_ok=True)
        command = ["java", *_OPTIONS, "-cp", f"{fetch_streams_jars()}/*", str(APPLICATION)]
        self._log = folder / "log"
        with self._log.open("ab") as errors:
            self._process = LineProcess(
                [*command, bootstrap, "counting", str(folder / "state"), SOURCE, TARGET, guarantee],
                errors,
            )

    def check(self) -> None:
        """BrokerError with its last words if it has ended."""
        if self._process.ended:
            raise BrokerError(f"the application has ended:\n{self._log.read_text()[-4000:]}")

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Has it leave its group."""
        self._process.end()


def run(quorum: Quorum, folder: Path, rounds: int, guarantee: str) -> bool:
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap, "log_level": 0})
    topics = [NewTopic(each, PARTITIONS, 3) for each in (SOURCE, TARGET)]
    for created in admin.create_topics(topics).values():
        created.result(TIMEOUT_S)
    with ExitStack() as stack:
        words = Words(quorum.bootstrap)
        stack.callback(words.end)
        counts = Counts(quorum.bootstrap, guarantee)
        stack.callback(counts.close)
        instances: list[Instance] = []

        def kill() -> None:
            for each in instances:
                each.kill()

        def start(number: int) -> Instance:
            return Instance(quorum.bootstrap, folder / f"instance{number}", guarantee)

        stack.callback(kill)
        for number in range(INSTANCES):
            instances.append(start(number))

        def tell(what: str) -> None:
            seconds = counts.wait_for(words.sent.copy(), instances)
            say(f"  {what}: what was sent by then is counted {seconds:.1f} s later")

        tell(f"{INSTANCES} instances have started")
        for _ in range(rounds):
            for node in quorum.addresses:
                quorum.end(node)
                quorum.restart(node)
                quorum.wait_in_sync()
                tell(f"node {node} was stopped and started")
            for node in quorum.addresses:
                quorum.kill(node)
                tell(f"kill -9 of node {node}")
                quorum.restart(node)
                quorum.wait_in_sync()
            instances[0].kill()
            instances[0] = start(0)
            tell("kill -9 of an instance, another one was started in its folder")
        words.end()
        counts.wait_for(words.sent, instances)
        for each in instances:
            each.end()
        while counts.read(2.0):
            pass
        wrong = counts.wrong
        if guarantee != AT_LEAST_ONCE:
            wrong = wrong + [f"{word} too often" for word in counts.last - words.sent]
    for text in wrong[:10]:
        say(f"WRONG: {text}")
    often = "at least once" if guarantee == AT_LEAST_ONCE else "once"
    sums = (
        f"{words.sent.total():,} records, {len(words.sent)} words, {counts.last.total():,} counted"
    )
    say(f"{sums}: {'NOT ' * bool(wrong)}each {often}")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="make streams", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="with Apache Kafka's nodes")
    parser.add_argument("--at-least-once", action="store_true", help="Streams' default guarantee")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    programs.require("make streams", *programs.APACHE_KAFKA)
    fetch_streams_jars()
    if options.kafka:
        fetch_broker_jars()
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kraftpy-streams-") as folder:
        quorum = (ApacheKafkaQuorum if options.kafka else KraftpyQuorum)(Path(folder))
        try:
            with running(quorum):
                guarantee = AT_LEAST_ONCE if options.at_least_once else EXACTLY_ONCE
                kept = run(quorum, Path(folder), options.rounds, guarantee)
        except BrokerError as error:
            say(f"failed: {error}\nthe nodes' last words:\n{quorum.log_tail()}")
            return 1
    say(f"{quorum.name}: {time.monotonic() - started_at:.0f} s")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

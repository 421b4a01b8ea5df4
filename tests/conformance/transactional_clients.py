"""Clients that know transactions and aren't Python's: Java's, kafkajs, franz-go.

Each is a program that carries out commands, one after the other; commands and answers are lines of
JSON. What it has written is read here with another client.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka

from kraftpy.testing.process import LineProcess
from tests.conformance.foreign import go_program, java_program, kafkajs_folder
from tests.waiting import wait_until

TIMEOUT_S = 60.0
TRANSACTION_TIMEOUT_MS = 60_000


class RefusedError(Exception):
    """What the client says of a command that failed: an error of Kafka's, or an exception."""


class TransactionalClient:
    """A process of one of these clients; `with TransactionalClient(...)` ends it."""

    def __init__(self, kind: str, bootstrap: str) -> None:
        command = _COMMANDS[kind]()
        self._process = LineProcess([*command, bootstrap], None)
        self.done = 0
        """How many records `transform` says that it has taken over."""

    def __enter__(self) -> TransactionalClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()

    def ask(self, do: str, name: str = "", **arguments: object) -> None:
        """Has it do something with the producer of this name; RefusedError if it says so."""
        self.begin(do, name=name, **arguments)
        self.end()

    def begin(self, do: str, **arguments: object) -> None:
        self._process.write_line(json.dumps({"do": do, **arguments}))

    def end(self) -> None:
        """The end of what was begun."""
        while not self._take():
            pass

    def advance(self, records: int) -> None:
        """Waits until so many records more are taken over."""
        wanted = self.done + records
        while self.done < wanted:
            assert not self._take(), f"it is through after {self.done} records"

    def _take(self) -> bool:
        """Takes the next line; whether it is the last one about a command."""
        line = self._process.read_line(TIMEOUT_S)
        if not line.startswith(b"{"):
            return False  # what the Java client warns of goes to the same place
        said = json.loads(line)
        if "error" in said:
            raise RefusedError(said["error"])
        self.done += said.get("done", 0)
        return "ok" in said

    def open(
        self, name: str, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self.ask("open", name, id=transactional_id, timeout_ms=timeout_ms)

    def send(self, name: str, topic: str, value: str, *partitions: int) -> None:
        self.ask("send", name, topic=topic, value=value, partitions=partitions)


_COMMANDS: dict[str, Callable[[], list[str]]] = {
    "java": lambda: java_program("TransactionalClient"),
    "kafkajs": lambda: ["node", str(kafkajs_folder() / "transactions.js")],
    "franz-go": lambda: [str(go_program("franz"))],
}


def read_committed(bootstrap: str, topic: str, partitions: int) -> list[list[str]]:
    """What a reader of committed records finds in each partition, once nothing is open there."""
    names = [confluent_kafka.TopicPartition(topic, each, 0) for each in range(partitions)]
    reader, everything = (
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "isolation.level": level,
                "enable.partition.eof": True,
            }
        )
        for level in ("read_committed", "read_uncommitted")
    )
    with contextlib.closing(reader), contextlib.closing(everything):
        wait_until(
            lambda: all(_end(reader, each) == _end(everything, each) for each in names),
            f"no transaction is open in {topic}",
            TIMEOUT_S,
        )
        reader.assign(names)
        return _read(reader, partitions)


def _end(consumer: Any, partition: confluent_kafka.TopicPartition) -> int:
    end: int = consumer.get_watermark_offsets(partition, TIMEOUT_S, cached=False)[1]
    return end


def _read(reader: Any, partitions: int) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"only {ended} have been read"
        message = reader.poll(1)
        if message is None:
            continue
        if message.error() is None:
            found[message.partition()].append(message.value().decode())
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    return found

"""Consumer groups under kill -9, of members and of the broker, with three stock clients at once.

Whoever dies when: no partition has two owners in a generation, every acknowledged record is read by
somebody, committed offsets never go back, and the group settles once the killing ends.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_response, decode_versioned, encode_request
from kraftpy.testing import Broker
from tests.consistency.group_member import SESSION_TIMEOUT_MS
from tests.processes import receive_exactly, split_address

PARTITIONS = 30
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
KILLS = 4
SETTLED_WITHIN_S = 30.0
ROOT = Path(__file__).parents[2]


def ask(address: str, api_key: ApiKey, version: int, request: object) -> Any:
    """The answer to one request on a connection of its own; raises OSError.

    librdkafka's admin client aborts the process when its broker is killed at a bad moment.
    """
    parts = encode_request(api_key, version, 1, "test", request)
    frame = b"".join(parts)
    with socket.create_connection(split_address(address), timeout=5) as sock:
        sock.sendall(len(frame).to_bytes(4, "big") + frame)
        size_bytes = int.from_bytes(receive_exactly(sock, 4), "big")
        return decode_response(api_key, version, receive_exactly(sock, size_bytes))[1]


class Members:
    """The group's processes, a place for each; whoever is killed is replaced."""

    def __init__(self, bootstrap: str, count: int, folder: Path) -> None:
        self.count = count
        self._bootstrap = bootstrap
        self._folder = folder
        self._started = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for place in range(count):
            self._start(place)

    def _start(self, place: int) -> None:
        self._started += 1
        client = CLIENTS[place % len(CLIENTS)]
        notes = self._folder / f"member-{self._started}"
        command = [sys.executable, "-m", "tests.consistency.group_member", client]
        command += [self._bootstrap, "g", "t", str(notes)]
        with notes.with_suffix(".log").open("wb") as log:
            self._processes[place] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def replace(self, place: int) -> None:
        self._kill(place)
        self._start(place)

    def _kill(self, place: int) -> None:
        self._processes[place].kill()
        self._processes[place].wait()

    def stop(self) -> None:
        for place in self._processes:
            self._kill(place)

    def notes(self) -> Iterator[list[str]]:
        """Every note of everybody, in words."""
        for path in self._folder.glob("member-*"):
            if not path.suffix:
                yield from (line.split() for line in path.read_text().splitlines())


class Watcher:
    """Asks for the group's offsets all the time, and remembers those that went back."""

    def __init__(self, address: str) -> None:
        self.committed: dict[int, int] = {}
        self.answers = 0
        self.went_back: list[str] = []
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(OSError):  # the broker is down
                self._look()

    def _look(self) -> None:
        request = messages.OffsetFetchRequest(group_id="g", topics=None)
        response = ask(self._address, ApiKey.OFFSET_FETCH, 7, request)
        if response.error_code:
            return  # it loads
        now = {
            place.partition_index: place.committed_offset
            for topic in response.topics
            for place in topic.partitions
        }
        self.answers += 1
        for partition, offset in self.committed.items():
            if now.get(partition, -1) < offset:
                self.went_back.append(f"{partition}: {offset} -> {now.get(partition)}")
        self.committed.update(now)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Producer:
    """Writes to all partitions in turn until it is stopped; counts what was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: Counter[int] = Counter()
        self._stop = threading.Event()
        self._producer = ConfluentProducer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition()] += 1

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce("t", b"x", partition=partition, on_delivery=self._delivered)
            self._producer.poll(0.02)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(SETTLED_WITHIN_S) == 0


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SETTLED_WITHIN_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"no {what} within {SETTLED_WITHIN_S:.0f} s")
        time.sleep(0.05)


def is_settled(address: str, members_count: int) -> bool:
    """Stable, with all its members, and each partition with one of them."""
    request = messages.DescribeGroupsRequest(groups=["g"])
    (group,) = ask(address, ApiKey.DESCRIBE_GROUPS, 5, request).groups
    if group.group_state != "Stable":
        return False
    owned: list[int] = []
    for member in group.members:
        _, given = decode_versioned("ConsumerProtocolAssignment", bytes(member.member_assignment))
        owned += [index for topic in given.assigned_partitions for index in topic.partitions]
    assert len(owned) == len(set(owned))
    return len(group.members) == members_count and len(owned) == PARTITIONS


def shared_partitions(notes: list[list[str]]) -> dict[str, list[str]]:
    """By generation, the partitions that were given out more than once."""
    owned: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, generation, *partitions in notes:
        if kind == "owns":
            owned[generation].update(partitions)
    assert owned
    return {
        generation: twice
        for generation, counts in owned.items()
        if (twice := [partition for partition, count in counts.items() if count > 1])
    }


def test_a_group_survives_its_members_and_its_broker(tmp_path: Path) -> None:
    rng = random.Random(5)
    settings = {
        "group_initial_rebalance_delay_ms": 200,
        "group_min_session_timeout_ms": SESSION_TIMEOUT_MS,
    }
    with Broker(**settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result()
        members = Members(broker.bootstrap, len(CLIENTS), tmp_path)
        watcher, producer = Watcher(broker.bootstrap), Producer(broker.bootstrap)
        try:
            wait_until("settled group", lambda: is_settled(broker.bootstrap, members.count))
            for number in range(KILLS):
                seen = watcher.answers
                if number % 2:
                    broker.kill()
                    broker.restart()
                else:
                    members.replace(rng.randrange(members.count))
                wait_until("answer about offsets", lambda seen=seen: watcher.answers > seen)
            wait_until("settled group", lambda: is_settled(broker.bootstrap, members.count))
            producer.stop()
            expected = dict(producer.acknowledged)
            wait_until("end of the topic", lambda: watcher.committed == expected)
        finally:
            producer.stop()
            watcher.stop()
            members.stop()
    notes = list(members.notes())
    read: dict[int, set[int]] = defaultdict(set)
    for kind, partition, *offset in notes:
        if kind == "read":
            read[int(partition)].add(int(offset[0]))
    assert {p: len(offsets) for p, offsets in read.items()} == expected
    assert watcher.went_back == []
    assert shared_partitions(notes) == {}
    for kind, partition, *offset in notes:
        if kind == "committed":
            assert int(offset[0]) <= watcher.committed[int(partition)]

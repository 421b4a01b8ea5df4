"""`kraftpy offsets sync` with a real ZooKeeper server, and members that are switched one by one."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.testing import Broker
from tests.cli.commands import TIMEOUT_S, Running, failure, run_command, running
from tests.clients.driver import Driver, Message
from tests.conformance.mixed_group import (
    COMMIT_EVERY,
    NewMember,
    OldMember,
    Processed,
    kill_all,
)
from tests.conformance.zookeeper import ZooKeeperServer, zookeeper_server
from tests.waiting import wait_until

PARTITIONS = 6


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class Migration:
    """A topic, a tree in ZooKeeper of this test's own, and both sides' offsets."""

    def __init__(
        self, zookeeper: ZooKeeperServer, bootstrap: str, reference: Driver, topic: str
    ) -> None:
        self.zookeeper = zookeeper
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = f"kitchen-{topic}"
        self.written = 0
        self.processed = Processed(PARTITIONS)
        self._reference = reference
        self._chroot = f"/kafka-{topic}"
        zookeeper.client.ensure_path(f"{self._chroot}/consumers")
        self.address = zookeeper.address + self._chroot

    def write(self, count: int) -> None:
        """So many records more in each partition."""
        messages = [Message(b"x", partition=p) for p in range(PARTITIONS) for _ in range(count)]
        self._reference.produce(self.topic, messages)
        self.written += count

    def old(self, *partitions: int) -> OldMember:
        where = (self.address, self.bootstrap, self.group, self.topic)
        return OldMember(*where, partitions, self.processed)

    def new(self, *partitions: int) -> NewMember:
        return NewMember(self.bootstrap, self.group, self.topic, partitions, self.processed)

    def node(self, partition: int) -> str:
        return f"{self._chroot}/consumers/{self.group}/offsets/{self.topic}/{partition}"

    def put(self, *offsets: int) -> None:
        """The offsets of partitions 0, 1, ... in ZooKeeper."""
        self.zookeeper.put({self.node(p): str(offset) for p, offset in enumerate(offsets)})

    def there(self) -> list[int]:
        client = self.zookeeper.client
        nodes = [self.node(number) for number in range(PARTITIONS)]
        return [int(self.zookeeper.get(node)) if client.exists(node) else -1 for node in nodes]

    def commit(self, *offsets: int) -> None:
        """The offsets of partitions 0, 1, ... here."""
        client = self._client()
        places = [TopicPartition(self.topic, p, offset) for p, offset in enumerate(offsets)]
        client.commit(offsets=places, asynchronous=False)
        client.close()

    def here(self) -> list[int]:
        client = self._client()
        wanted = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        found = client.committed(wanted, TIMEOUT_S)
        client.close()
        return [max(-1, each.offset) for each in found]

    def _client(self) -> Consumer:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": self.group}
        return Consumer({**settings, "enable.auto.commit": False})

    def command(self, *args: str) -> list[str]:
        return ["offsets", "sync", "--zookeeper", self.address, "-o", "json", *args]

    def once(self, *args: str, code: int = 0) -> list[dict[str, Any]]:
        done = run_command(*self.command("--once", *args), bootstrap=self.bootstrap)
        assert done.returncode == code, done.stderr.decode()
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


@pytest.fixture
def migration(
    zookeeper: ZooKeeperServer, bootstrap: str, reference: Driver, new_topic: Callable[..., str]
) -> Migration:
    return Migration(zookeeper, bootstrap, reference, new_topic(partitions=PARTITIONS))


def test_341_members_are_switched_one_by_one(migration: Migration) -> None:
    """And one of them back and forth, while ZooKeeper is killed: the bound is what it commits."""
    processed = migration.processed
    pairs = [(0, 1), (2, 3), (4, 5)]
    members: list[OldMember | NewMember] = [migration.old(*pair) for pair in pairs]
    command = migration.command("--every", "0.1")
    with running(*command, bootstrap=migration.bootstrap) as sync:
        try:
            for round_, number in enumerate((0, 1, 1, 2, 1)):
                migration.write(25)
                wait_until(lambda: processed.reached(migration.written), "all is processed")
                if round_ == 1:
                    migration.zookeeper.restart()
                members[number].kill()
                migration.once()
                was_old = isinstance(members[number], OldMember)
                make = migration.new if was_old else migration.old
                members[number] = make(*pairs[number])
            migration.write(25)
            wait_until(lambda: processed.reached(migration.written), "all is processed")
        finally:
            kill_all(members)
        assert processed.skipped() == []
        for partition in range(PARTITIONS):
            switches = 3 if partition in pairs[1] else 1
            assert processed.repeated(partition) <= switches * (COMMIT_EVERY - 1)
        wait_until(lambda: migration.here() == migration.there(), "both sides in step")
        assert min(migration.here()) > migration.written - COMMIT_EVERY
        assert sync.end(signal.SIGINT) == 0, sync.rest_of_stderr()


def summary_of(sync: Running) -> dict[str, Any]:
    """The last line that it says."""
    assert sync.process.stdout is not None
    *_, last = [line for line in sync.process.stdout.read().decode().splitlines() if line]
    said: dict[str, Any] = json.loads(last)
    return said


def test_341_the_further_offset_wins(migration: Migration) -> None:
    migration.write(50)
    migration.put(10, 20, 30)
    migration.commit(15, 20, 25, 5)
    rows = migration.once("--dry-run")
    assert {(row["partition"], row.get("where"), row["status"]) for row in rows} == {
        (0, "ZooKeeper", "planned"),
        (1, None, "unchanged"),
        (2, "here", "planned"),
        (3, "ZooKeeper", "planned"),
    }
    assert migration.here()[:4] == [15, 20, 25, 5]
    rows = migration.once("-g", migration.group)
    assert [row["status"] for row in rows] == ["done", "unchanged", "done", "done"]
    assert migration.here() == migration.there() == [15, 20, 30, 5, -1, -1]
    assert {row["status"] for row in migration.once()} == {"unchanged"}


def test_341_going_back_takes_a_reset_of_both(migration: Migration) -> None:
    migration.write(50)
    migration.put(30)
    with running(*migration.command("--every", "0.1"), bootstrap=migration.bootstrap) as sync:
        wait_until(lambda: migration.here()[0] == 30, "it is carried")
        sync.stdout_line()
        migration.commit(10)
        assert "went back from 30 to 10 here" in (said := sync.stderr_line())
        assert f"kraftpy offsets export --overwrite -g {migration.group}" in said
        assert migration.here()[0] == 30
        migration.put(12)
        wait_until(lambda: migration.there()[0] == 30, "it is carried")
        assert sync.end() == 0
        counts = summary_of(sync)
        assert (counts["here"], counts["zookeeper"], counts["skipped"]) == (2, 1, 0)
    migration.commit(10)
    address = ("--zookeeper", migration.address, "-g", migration.group)
    done = run_command("offsets", "export", *address, "--overwrite", bootstrap=migration.bootstrap)
    assert done.returncode == 0
    migration.once()
    assert (migration.here()[0], migration.there()[0]) == (10, 10)


def test_what_cant_be_carried_is_left_and_told_once(migration: Migration) -> None:
    migration.write(20)
    migration.put(5, 100)
    other = migration.node(0).replace(f"/{migration.topic}/", f"/no-{migration.topic}/")
    migration.zookeeper.put({other: "7"})
    reasons = {
        (row["topic"], row["partition"]): row.get("reason", "") for row in migration.once(code=1)
    }
    assert reasons[migration.topic, 0] == ""
    assert "the log ends at 20" in reasons[migration.topic, 1]
    assert "kraftpy topic create" in reasons[f"no-{migration.topic}", 0]
    assert migration.here()[:2] == [5, -1]

    member = migration._client()
    try:
        member.subscribe([migration.topic])
        wait_until(lambda: bool(member.poll(0.05) or member.assignment()), "an assignment")
        migration.put(8)
        args = migration.command("--every", "0.1", "-t", migration.topic)
        with running(*args, bootstrap=migration.bootstrap) as sync:
            said = {sync.stderr_line(), sync.stderr_line()}
            assert any("has 1 member here, and only they may commit" in each for each in said)
            assert any("the log ends at 20" in each for each in said)
            member.commit(offsets=[TopicPartition(migration.topic, 0, 9)], asynchronous=False)
            wait_until(lambda: migration.there()[0] == 9, "a member's commit is carried")
            assert sync.end() == 0
            assert sync.rest_of_stderr() == ""
    finally:
        member.close()


def test_what_makes_no_sense_is_said(migration: Migration) -> None:
    def fail(address: str, *args: str, code: int) -> str:
        command = ("offsets", "sync", "--zookeeper", address, *args)
        return failure(*command, code=code, bootstrap=migration.bootstrap)

    said = fail(migration.address, "-g", "nobody", code=1)
    assert "there is no group 'nobody' in ZooKeeper, nor here" in said
    assert "HOST:PORT/CHROOT" in fail(migration.zookeeper.address, code=1)
    assert "no ZooKeeper answers" in fail("127.0.0.1:1", code=3)
    assert "HOST:PORT" in fail("kafka:x", code=2)


def test_it_goes_on_when_brokers_are_back(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    from tests.clients.confluent import ConfluentKafka
    from tests.spark.topics import on_cluster

    with Broker(dir=tmp_path / "near") as broker:

        async def make(cluster: Cluster) -> None:
            await Admin(cluster).create_topic("orders", partitions=PARTITIONS)

        on_cluster(broker.bootstrap, make)
        migration = Migration(
            zookeeper, broker.bootstrap, ConfluentKafka(broker.bootstrap), "orders"
        )
        migration.write(50)
        migration.put(10)
        command = migration.command("--every", "0.1", "--timeout", "1")
        with running(*command, bootstrap=broker.bootstrap) as sync:
            sync.stdout_line()
            broker.kill()
            assert "Waiting for it" in sync.stderr_line()
            migration.put(20)
            broker.restart()
            assert "both sides answer again" in sync.stderr_line()
            wait_until(lambda: migration.here()[0] == 20, "it is carried")
            assert sync.end() == 0

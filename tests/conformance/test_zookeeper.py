"""`kraftpy offsets import` and `export` with a real ZooKeeper server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.security import make_digest_acl

from tests.cli.commands import TIMEOUT_S, failure, run_command
from tests.clients.driver import Driver, Message
from tests.conformance.zookeeper import ZooKeeperServer, zookeeper_server
from tests.waiting import wait_until

Run = Callable[..., tuple[int, list[dict[str, Any]], str]]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer, topic: str) -> str:
    """A tree of this test's own."""
    path = f"/kafka-{topic}"
    zookeeper.client.ensure_path(f"{path}/consumers")
    return path


@pytest.fixture
def log(new_topic: Callable[..., str], reference: Driver) -> str:
    """A topic of three partitions with 20 records each."""
    name = new_topic(partitions=3)
    reference.produce(name, [Message(b"x", partition=p) for p in (0, 1, 2) for _ in range(20)])
    return name


@pytest.fixture
def run(zookeeper: ZooKeeperServer, bootstrap: str, chroot: str) -> Run:
    """`kraftpy offsets ...`: exit code, rows, and what it says on stderr."""

    def run(*args: str) -> tuple[int, Rows, str]:
        address = ("--zookeeper", zookeeper.address + chroot)
        done = run_command("offsets", *args, *address, "-o", "json", bootstrap=bootstrap)
        assert done.stdout, done.stderr.decode()
        return done.returncode, json.loads(done.stdout), done.stderr.decode()

    return run


@pytest.fixture
def put(zookeeper: ZooKeeperServer, chroot: str) -> Callable[..., None]:
    """`put(group, topic, {node: value})` in the old consumers' tree."""

    def put(group: str, topic: str, values: dict[str, str]) -> None:
        folder = f"{chroot}/consumers/{group}/offsets/{topic}"
        zookeeper.put({f"{folder}/{node}": value for node, value in values.items()})

    return put


@pytest.fixture
def get(zookeeper: ZooKeeperServer, chroot: str) -> Callable[..., str]:
    def get(group: str, topic: str, partition: int) -> str:
        return zookeeper.get(f"{chroot}/consumers/{group}/offsets/{topic}/{partition}")

    return get


def consumer(bootstrap: str, group: str) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    return Consumer(settings | {"client.id": "cook"})


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    client = consumer(bootstrap, group)
    found = client.committed([TopicPartition(topic, p) for p in range(3)], TIMEOUT_S)
    client.close()
    return [each.offset for each in found]


def commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    client = consumer(bootstrap, group)
    places = [TopicPartition(topic, p, offset) for p, offset in enumerate(offsets)]
    client.commit(offsets=places, asynchronous=False)
    client.close()


def statuses(rows: Rows) -> list[str]:
    return [row["status"] for row in rows]


def test_import_again_and_again(
    run: Run, put: Callable[..., None], bootstrap: str, log: str, zookeeper: ZooKeeperServer
) -> None:
    group = f"g-{log}"
    put(group, log, {"0": "5", "1": "20"})
    put(f"other-{log}", log, {"0": "7"})
    code, rows, _ = run("import", "--dry-run")
    assert (code, statuses(rows)) == (0, ["planned"] * 3)
    assert committed(bootstrap, group, log) == [-1001] * 3

    code, rows, _ = run("import", "-g", group)
    assert code == 0
    assert rows[0] == {
        "group": group,
        "topic": log,
        "partition": 0,
        "from": None,
        "to": 5,
        "status": "done",
    }
    assert committed(bootstrap, group, log) == [5, 20, -1001]
    assert statuses(run("import", "-g", group)[1]) == ["unchanged", "unchanged"]

    put(group, log, {"0": "4", "1": "20", "2": "1"})
    code, rows, _ = run("import", "-g", group, "-t", log)
    assert (code, statuses(rows)) == (0, ["kept", "unchanged", "done"])
    assert "--overwrite" in rows[0]["reason"]
    assert committed(bootstrap, group, log) == [5, 20, 1]
    assert statuses(run("import", "-g", group, "--overwrite")[1]) == [
        "done",
        "unchanged",
        "unchanged",
    ]
    assert committed(bootstrap, group, log) == [4, 20, 1]
    assert committed(bootstrap, f"other-{log}", log) == [-1001] * 3


def test_what_import_skips_and_why(
    run: Run, put: Callable[..., None], bootstrap: str, log: str
) -> None:
    group = f"g-{log}"
    values = {"0": "many", "1": "", "2": "21", "3": "5", "1-0": "5", "007": "5", "x": "1"}
    put(group, log, values | {"9" * 5000: "1"})
    put(group, f"no-{log}", {"0": "5"})
    code, rows, _ = run("import")
    assert code == 1
    assert set(statuses(rows)) == {"skipped"}
    reasons = {str(row["partition"]): row["reason"] for row in rows if row["topic"] == log}
    assert "'many' is no offset" in reasons["0"]
    assert "'' is no offset" in reasons["1"]
    assert "the log ends at 20" in reasons["2"]
    assert "the topic has 3 partitions" in reasons["3"]
    assert "Kafka 0.7" in reasons["1-0"]
    assert "'x' is no partition" in reasons["x"]
    assert f"kraftpy topic create no-{log}" in rows[0]["reason"]
    assert committed(bootstrap, group, log) == [-1001] * 3


def test_groups_in_use(
    run: Run,
    put: Callable[..., None],
    get: Callable[..., str],
    bootstrap: str,
    log: str,
    zookeeper: ZooKeeperServer,
    chroot: str,
) -> None:
    group = f"g-{log}"
    put(group, log, {"0": "5"})
    client = consumer(bootstrap, group)
    try:
        client.subscribe([log])
        wait_until(lambda: bool(client.poll(0.05) or client.assignment()), "an assignment")
        code, rows, _ = run("import")
        assert (code, statuses(rows)) == (1, ["skipped"])
        assert "stop its 1 member first" in rows[0]["reason"]
        client.commit(offsets=[TopicPartition(log, 0, 6)], asynchronous=False)
        code, rows, said = run("export", "-g", group)
        assert (code, statuses(rows)) == (0, ["done"])
        assert "run this again when its 1 member stopped" in said
    finally:
        client.close()
    assert get(group, log, 0) == "6"

    zookeeper.put({f"{chroot}/consumers/{group}/ids/old-consumer": "{}"})
    put(group, log, {"0": "9"})
    code, rows, said = run("import")
    assert (code, statuses(rows)) == (0, ["done"])
    assert f"1 consumer of group '{group}' still" in said
    commit(bootstrap, group, log, 12)
    code, rows, _ = run("export", "-g", group)
    assert (code, statuses(rows)) == (1, ["skipped"])
    assert "1 consumer of it runs on ZooKeeper" in rows[0]["reason"]
    assert get(group, log, 0) == "9"


def test_export_again_and_again(
    run: Run,
    put: Callable[..., None],
    get: Callable[..., str],
    bootstrap: str,
    log: str,
    zookeeper: ZooKeeperServer,
    chroot: str,
) -> None:
    group, odd = f"g-{log}", f"a/b-{log}"
    commit(bootstrap, group, log, 5, 6, 7)
    commit(bootstrap, odd, log, 1)
    code, rows, _ = run("export", "-g", group, "--dry-run")
    assert (code, statuses(rows)) == (0, ["planned"] * 3)
    assert not zookeeper.client.exists(f"{chroot}/consumers/{group}")

    code, rows, _ = run("export", "-g", group)
    assert (code, statuses(rows)) == (0, ["done"] * 3)
    assert [get(group, log, p) for p in range(3)] == ["5", "6", "7"]
    assert statuses(run("export", "-g", group)[1]) == ["unchanged"] * 3

    put(group, log, {"0": "9", "1": "many", "2": "3"})
    code, rows, _ = run("export", "-g", group)
    assert (code, statuses(rows)) == (1, ["kept", "skipped", "done"])
    assert [get(group, log, p) for p in range(3)] == ["9", "many", "7"]
    code, rows, _ = run("export", "-g", group, "--overwrite")
    assert (code, statuses(rows)) == (0, ["done", "done", "unchanged"])
    assert [get(group, log, p) for p in range(3)] == ["5", "6", "7"]
    assert statuses(run("import", "-g", group)[1]) == ["unchanged"] * 3

    code, rows, _ = run("export", "-g", odd)
    assert (code, statuses(rows)) == (1, ["skipped"])
    assert "can't be the name of a node" in rows[0]["reason"]


def test_more_offsets_than_are_asked_for_at_once(
    run: Run, put: Callable[..., None], bootstrap: str, log: str, zookeeper: ZooKeeperServer
) -> None:
    for number in range(100):
        put(f"g{number}-{log}", log, {"0": "1", "1": "2", "2": "3"})
    code, rows, _ = run("import")
    assert code == 0
    assert statuses(rows) == ["done"] * 300
    assert committed(bootstrap, f"g99-{log}", log) == [1, 2, 3]


def test_where_there_is_nothing(
    zookeeper: ZooKeeperServer, bootstrap: str, run: Run, log: str
) -> None:
    def fail(address: str, *args: str) -> str:
        command = ("offsets", "import", "--zookeeper", address, *args)
        return failure(*command, code=1, bootstrap=bootstrap)

    assert "HOST:PORT/CHROOT" in fail(zookeeper.address)
    assert "is the chroot behind the address right?" in fail(f"{zookeeper.address}/no")
    assert run("import") == (0, [], "")
    said = fail(zookeeper.address + f"/kafka-{log}", "-g", "nobody")
    assert "there is no group 'nobody' in ZooKeeper" in said


def test_nodes_that_are_protected(
    zookeeper: ZooKeeperServer, put: Callable[..., None], bootstrap: str, log: str, chroot: str
) -> None:
    put(f"g-{log}", log, {"0": "5"})
    node = f"{chroot}/consumers/g-{log}/offsets/{log}/0"
    zookeeper.client.set_acls(node, [make_digest_acl("somebody", "else", all=True)])
    command = ("offsets", "import", "--zookeeper", zookeeper.address + chroot)
    assert "setAcl" in failure(*command, code=1, bootstrap=bootstrap)


def test_the_table(
    zookeeper: ZooKeeperServer, put: Callable[..., None], bootstrap: str, log: str, chroot: str
) -> None:
    group = f"g-{log}"
    put(group, log, {"0": "5", "1": "many"})
    command = ("offsets", "import", "--zookeeper", zookeeper.address + chroot)
    done = run_command(*command, bootstrap=bootstrap)
    assert done.returncode == 1
    assert [line.split()[1:6] for line in done.stdout.decode().splitlines()] == [
        ["TOPIC", "PARTITION", "FROM", "TO", "STATUS"],
        [log, "0", "-", "5", "done"],
        [log, "1", "-", "-", "skipped"],
    ]
    assert done.stderr.decode() == "1 done, 1 skipped\n"

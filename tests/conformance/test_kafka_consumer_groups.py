"""Apache Kafka's kafka-consumer-groups in all its modes, on groups of both protocols."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import T0_MS, Deadline, Driver, Message
from tests.conformance.tool_runner import Ended, ToolRunner

TOOL = "kafka-consumer-groups"
RECORDS = 20
NOT_READY = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
PROTOCOLS = ["classic", "consumer"]

Row = dict[str, str]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    with ToolRunner(tmp_path_factory.mktemp("tools") / "log") as started:
        yield started


@pytest.fixture
def tool(runner: ToolRunner, bootstrap: str) -> Callable[..., Ended]:
    def run(*args: str) -> Ended:
        return runner.run(TOOL, "--bootstrap-server", bootstrap, *args)

    return run


@pytest.fixture
def groups(tool: Callable[..., Ended]) -> Callable[..., str]:
    """What the tool prints; it must succeed and complain of nothing."""

    def run(*args: str) -> str:
        ended = tool(*args)
        assert (ended.code, "Error:" in ended.out) == (0, False), ended
        return ended.out

    return run


@pytest.fixture
def log(new_topic: Callable[..., str], reference: Driver) -> str:
    """A topic of two partitions with 20 records each, a second apart."""
    name = new_topic(partitions=2)
    times = [T0_MS + 1000 * number for number in range(RECORDS)]
    reference.produce(
        name, [Message(b"x", partition=p, timestamp_ms=t) for p in (0, 1) for t in times]
    )
    return name


@pytest.fixture
def group(log: str) -> str:
    return f"g-{log}"


def consumer(bootstrap: str, group: str, protocol: str = "classic") -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": "cook",
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    return Consumer(settings)


@contextmanager
def member(bootstrap: str, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """The only member of a group, with both partitions of the topic."""
    client = consumer(bootstrap, group, protocol)
    try:
        client.subscribe([topic])
        deadline = Deadline("assignment")
        while len(client.assignment()) < 2:
            client.poll(min(0.05, deadline.left()))
        yield client
    finally:
        client.close()


def commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    """Commit an offset for each of the topic's first partitions, without being a member."""
    client = consumer(bootstrap, group)
    places = [TopicPartition(topic, p, offset) for p, offset in enumerate(offsets)]
    deadline = Deadline("commit")
    while True:
        try:
            client.commit(offsets=places, asynchronous=False)
            break
        except KafkaException as error:  # Apache Kafka is not ready for its first group at once
            if error.args[0].code() not in NOT_READY:
                raise
        deadline.left()
    client.close()


def committed(bootstrap: str, group: str, topic: str) -> list[int | None]:
    client = consumer(bootstrap, group)
    found = client.committed([TopicPartition(topic, p) for p in (0, 1)], 30)
    client.close()
    return [None if each.offset < 0 else each.offset for each in found]


def table(text: str) -> list[Row]:
    """The rows of a table; a header's columns name the cells."""
    header, *lines = (
        line.replace("COORDINATOR (ID)", "COORDINATOR ID").split()
        for line in text.splitlines()
        if line.strip()
    )
    return [dict(zip(header, line, strict=True)) for line in lines if line != header]


def of_topic(text: str, topic: str) -> list[list[str]]:
    """(partition, offset, ...) of the rows about a topic, sorted."""
    lines = [line.split() for line in text.splitlines() if topic in line.split()]
    rows = [line[line.index(topic) + 1 :] for line in lines]
    return sorted(row for row in rows if row and row[0].isdecimal())  # others are sentences


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_list(
    groups: Callable[..., str],
    tool: Callable[..., Ended],
    bootstrap: str,
    log: str,
    group: str,
    protocol: str,
) -> None:
    empty = f"empty-{log}"
    commit(bootstrap, empty, log, 1)
    with member(bootstrap, group, log, protocol):
        assert {group, empty} <= set(groups("--list").split())
        listed = {row["GROUP"]: row for row in table(groups("--list", "--state", "--type"))}
        name = protocol.capitalize()
        assert listed[group] == {"GROUP": group, "TYPE": name, "STATE": "Stable"}
        assert listed[empty] == {"GROUP": empty, "TYPE": "Classic", "STATE": "Empty"}
        states = {row["GROUP"]: row["STATE"] for row in table(groups("--list", "--state", "empty"))}
        assert (states[empty], group in states) == ("Empty", False)
        types = {row["GROUP"]: row["TYPE"] for row in table(groups("--list", "--type", protocol))}
        assert (types[group], set(types.values())) == (name, {name})
    for option in ("--state", "--type"):
        ended = tool("--list", option, "sleepy")
        assert ended.code == 1
        assert "Invalid" in ended.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_describe_a_group_with_members(
    groups: Callable[..., str], bootstrap: str, log: str, group: str, protocol: str
) -> None:
    with member(bootstrap, group, log, protocol) as client:
        client.commit(offsets=[TopicPartition(log, 0, 5)], asynchronous=False)
        member_id = client.memberid()
        of_group = ("--describe", "--group", group)
        rows = table(groups(*of_group))
        assert table(groups(*of_group, "--offsets")) == rows
        assert rows[0] == {
            "GROUP": group,
            "TOPIC": log,
            "PARTITION": "0",
            "CURRENT-OFFSET": "5",
            "LOG-END-OFFSET": "20",
            "LAG": "15",
            "CONSUMER-ID": member_id,
            "HOST": "/127.0.0.1",
            "CLIENT-ID": "cook",
        }
        assert (rows[1]["CURRENT-OFFSET"], rows[1]["LAG"]) == ("-", "-")
        verbose = table(groups(*of_group, "--offsets", "--verbose"))
        assert verbose[1] == rows[1] | {"LEADER-EPOCH": "-"}
        assert rows[0] in table(groups("--describe", "--all-groups"))

        (row,) = table(groups(*of_group, "--members"))
        assert row == {
            "GROUP": group,
            "CONSUMER-ID": member_id,
            "HOST": "/127.0.0.1",
            "CLIENT-ID": "cook",
            "#PARTITIONS": "2",
        }
        (verbose_row,) = table(groups(*of_group, "--members", "--verbose"))
        assert verbose_row["CURRENT-ASSIGNMENT"] == f"{log}:0,1"
        in_epochs = protocol == "consumer"
        assert verbose_row["TARGET-ASSIGNMENT"] == (f"{log}:0,1" if in_epochs else "-")
        assert verbose_row["CURRENT-EPOCH"].isdigit() == in_epochs

        (row,) = table(groups(*of_group, "--state"))
        assert (row["GROUP"], row["STATE"], row["#MEMBERS"]) == (group, "Stable", "1")
        assert row["COORDINATOR"].startswith("127.0.0.1:")
        assert row["ASSIGNMENT-STRATEGY"] == ("uniform" if in_epochs else "range")
        (verbose_row,) = table(groups(*of_group, "--state", "--verbose"))
        assert verbose_row["GROUP-EPOCH"].isdigit() == in_epochs


def test_describe_a_group_that_is_being_upgraded(
    groups: Callable[..., str], bootstrap: str, log: str, group: str
) -> None:
    with member(bootstrap, group, log, "consumer") as new:
        old = consumer(bootstrap, group)
        old.subscribe([log])
        deadline = Deadline("assignment")
        while len(new.assignment()) != 1 or len(old.assignment()) != 1:
            new.poll(min(0.02, deadline.left()))
            old.poll(0.02)
        upgraded = {
            row["CONSUMER-ID"]: row["UPGRADED"]
            for row in table(groups("--describe", "--group", group, "--members", "--verbose"))
        }
        assert upgraded == {new.memberid(): "true", old.memberid(): "false"}
        old.close()


def test_offsets_of_a_consumer_group_without_members(
    groups: Callable[..., str], bootstrap: str, log: str, group: str
) -> None:
    with member(bootstrap, group, log, "consumer") as client:
        client.commit(offsets=[TopicPartition(log, 0, 5)], asynchronous=False)
    of_group = ("--group", group, "--topic", log)
    groups("--reset-offsets", *of_group, "--to-offset", "7", "--execute")
    assert committed(bootstrap, group, log) == [7, 7]
    groups("--delete-offsets", *of_group)
    assert committed(bootstrap, group, log) == [None, None]
    assert f"{group} " in groups("--list", "--type", "consumer", "--state", "empty")


def test_describe_groups_without_members(
    tool: Callable[..., Ended], bootstrap: str, log: str, group: str
) -> None:
    commit(bootstrap, group, log, 5)
    ended = tool("--describe", "--group", group)
    assert of_topic(ended.out, log) == [["0", "5", "20", "15", "-", "-", "-"]]
    assert f"Consumer group '{group}' has no active members." in ended.err
    ended = tool("--describe", "--group", group, "--state")
    assert table(ended.out)[0]["STATE"] == "Empty"
    ended = tool("--describe", "--group", group, "--members")
    assert f"Consumer group '{group}' has no active members." in ended.err
    ended = tool("--describe", "--group", f"no-{group}")
    assert "GroupIdNotFoundException" in ended.out + ended.err


SCENARIOS = {
    "--to-earliest": (0, 0),
    "--to-latest": (20, 20),
    "--to-offset 7": (7, 7),
    "--to-offset 999": (20, 20),
    "--shift-by 3": (8, 13),
    "--shift-by -8": (0, 2),
    "--to-current": (5, 10),
    "--to-datetime": (12, 12),
    "--by-duration PT0S": (20, 20),
    "--by-duration P1D": (0, 0),
}


def test_reset_offsets(groups: Callable[..., str], bootstrap: str, log: str, group: str) -> None:
    reset = ("--reset-offsets", "--group", group)
    when = datetime.fromtimestamp((T0_MS + 11_500) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[
        :-3
    ]
    for scenario, expected in SCENARIOS.items():
        commit(bootstrap, group, log, 5, 10)
        words = scenario.split() if scenario != "--to-datetime" else [scenario, when + "Z"]
        rows = [[str(p), str(offset)] for p, offset in enumerate(expected)]
        out = groups(*reset, "--topic", log, *words, "--dry-run")
        assert of_topic(out, log) == rows, scenario
        assert committed(bootstrap, group, log) == [5, 10], scenario
        out = groups(*reset, "--topic", log, *words, "--execute")
        assert of_topic(out, log) == rows, scenario
        assert committed(bootstrap, group, log) == list(expected), scenario


def test_reset_offsets_of_topics_partitions_and_groups(
    groups: Callable[..., str],
    tool: Callable[..., Ended],
    bootstrap: str,
    log: str,
    group: str,
) -> None:
    commit(bootstrap, group, log, 5, 10)
    reset = ("--reset-offsets", "--group", group, "--to-earliest")
    assert of_topic(groups(*reset, "--topic", f"{log}:1", "--execute"), log) == [["1", "0"]]
    assert committed(bootstrap, group, log) == [5, 0]
    both = groups(*reset, "--topic", f"{log}:0,1", "--dry-run")
    assert of_topic(both, log) == [["0", "0"], ["1", "0"]]
    assert groups(*reset, "--all-topics", "--dry-run").count(log) == 4  # the group's name has it
    groups(*reset, "--all-topics", "--execute")
    assert committed(bootstrap, group, log) == [0, 0]
    every = ("--reset-offsets", "--all-groups", "--to-latest", "--topic", log, "--dry-run")
    ended = tool(*every)  # it complains of groups of other tests that have members
    assert (ended.code, f"'{group}'" in ended.out) == (0, False), ended
    assert [group, log, "1", "20"] in map(str.split, ended.out.splitlines())
    ended = tool(*reset, "--topic", f"no-{log}", "--execute")
    assert "UnknownTopicOrPartition" in ended.out + ended.err


def test_reset_offsets_exported_and_from_the_file(
    groups: Callable[..., str], bootstrap: str, log: str, group: str, tmp_path: Path
) -> None:
    commit(bootstrap, group, log, 5, 10)
    of_group = ("--reset-offsets", "--group", group)
    exported = groups(*of_group, "--all-topics", "--to-current", "--export", "--dry-run")
    assert sorted(exported.replace('"', "").split()) == [f"{log},0,5", f"{log},1,10"]
    file = tmp_path / "offsets.csv"
    file.write_text(exported)
    groups(*of_group, "--all-topics", "--to-latest", "--execute")
    groups(*of_group, "--from-file", str(file), "--execute")
    assert committed(bootstrap, group, log) == [5, 10]
    other = f"other-{group}"
    two = (*of_group, "--group", other)
    exported = groups(*two, "--topic", log, "--to-earliest", "--export", "--dry-run")
    file.write_text(exported)
    assert len(exported.split()) == 4
    groups(*two, "--from-file", str(file), "--execute")
    assert committed(bootstrap, other, log) == [0, 0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_group_with_members_forbids(
    tool: Callable[..., Ended], bootstrap: str, log: str, group: str, protocol: str
) -> None:
    commit(bootstrap, group, log, 5, 10)
    with member(bootstrap, group, log, protocol):
        reset = ("--reset-offsets", "--group", group, "--topic", log, "--to-earliest")
        assert "is inactive, but the current state is Stable" in tool(*reset, "--execute").out
        out = tool("--delete", "--group", group).out
        assert "Deletion of some consumer groups failed" in out
        assert "NON_EMPTY_GROUP" in out or "not empty" in out
        out = tool("--delete-offsets", "--group", group, "--topic", log).out
        assert "Encountered some partition-level error" in out
        assert out.count("Error: ") == 3
    assert committed(bootstrap, group, log) == [5, 10]


def test_delete_offsets(
    groups: Callable[..., str],
    tool: Callable[..., Ended],
    bootstrap: str,
    log: str,
    group: str,
) -> None:
    commit(bootstrap, group, log, 5, 10)
    of_group = ("--delete-offsets", "--group", group)
    out = groups(*of_group, "--topic", f"{log}:1")
    assert f"Request succeeded for deleting offsets from group {group}." in out
    assert of_topic(out, log) == [["1", "Successful"]]
    assert committed(bootstrap, group, log) == [5, None]
    groups(*of_group, "--topic", log)
    assert committed(bootstrap, group, log) == [None, None]
    out = tool(*of_group, "--topic", f"no-{log}").out
    assert f"no-{log}" in out
    assert "Error: " in out
    out = tool("--delete-offsets", "--group", f"no-{group}", "--topic", log).out
    assert "Error: " in out


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_delete(
    groups: Callable[..., str],
    tool: Callable[..., Ended],
    bootstrap: str,
    log: str,
    group: str,
    protocol: str,
) -> None:
    with member(bootstrap, group, log, protocol) as client:
        client.commit(offsets=[TopicPartition(log, 0, 5)], asynchronous=False)
    other = f"other-{group}"
    commit(bootstrap, other, log, 5)
    out = groups("--delete", "--group", group, "--group", other)
    assert "was successful." in out
    assert not {group, other} & set(groups("--list").split())
    out = tool("--delete", "--group", group).out
    assert "Deletion of some consumer groups failed" in out
    assert committed(bootstrap, group, log) == [None, None]


def test_delete_all_groups(runner: ToolRunner, kraftpy_factory: Callable[..., Broker]) -> None:
    """On a broker of its own, because other tests' groups would go too."""
    broker = kraftpy_factory()
    topic = f"t-{uuid.uuid4().hex[:12]}"
    ConfluentKafka(broker.bootstrap).create_topic(topic)
    commit(broker.bootstrap, "a", topic, 0)
    commit(broker.bootstrap, "b", topic, 0)
    server = ("--bootstrap-server", broker.bootstrap)
    out = runner.run(TOOL, *server, "--delete", "--all-groups").out
    assert "'a'" in out
    assert "'b'" in out
    assert runner.run(TOOL, *server, "--list").out.split() == []


def test_validate_regex(groups: Callable[..., str]) -> None:
    assert "is valid" in groups("--validate-regex", "orders-.*")
    assert "is invalid" in groups("--validate-regex", "orders-(")

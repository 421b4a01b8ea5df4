"""`kraftpy group` against a real broker, with groups of confluent-kafka."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Broker, Cluster
from tests.server.test_share_groups import Group as Shares
from tests.server.wire import Wire
from tests.waiting import wait_until

from .commands import TIMEOUT_S, failure, output, run_command, running

RECORDS = 30


@pytest.fixture
def topic(kraftpy: Broker) -> str:
    """A topic of two partitions with 30 records each, a millisecond apart since T0."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    client = AdminClient({"bootstrap.servers": kraftpy.bootstrap})
    topic = NewTopic(name, 2, config={"retention.ms": "-1"})  # the records are old
    client.create_topics([topic])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": kraftpy.bootstrap})
    for number in range(RECORDS):
        for partition in (0, 1):
            producer.produce(name, b"x", partition=partition, timestamp=1_700_000_000_000 + number)
    assert producer.flush(TIMEOUT_S) == 0
    return name


@pytest.fixture
def name(topic: str) -> str:
    return f"g-{topic}"


@pytest.fixture
def group(kraftpy: Broker) -> Callable[..., str]:
    def run(*args: str) -> str:
        return output("group", *args, bootstrap=kraftpy.bootstrap)

    return run


@pytest.fixture
def fail(kraftpy: Broker) -> Callable[..., str]:
    def run(*args: str) -> str:
        return failure("group", *args, code=1, bootstrap=kraftpy.bootstrap)

    return run


def consumer_settings(bootstrap: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": "cook",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


def commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    """Commit an offset for each of the topic's first partitions, without being a member."""
    client = Consumer(consumer_settings(bootstrap, group))
    client.commit(
        offsets=[TopicPartition(topic, p, offset) for p, offset in enumerate(offsets)],
        asynchronous=False,
    )
    client.close()


@contextmanager
def member(bootstrap: str, group: str, topic: str, **settings: str) -> Iterator[Consumer]:
    """The only member of a group, with both partitions."""
    client = Consumer(consumer_settings(bootstrap, group) | settings)
    try:
        client.subscribe([topic])
        wait_until(lambda: bool(client.poll(0.05) or client.assignment()), "an assignment")
        yield client
    finally:
        client.close()


def moves(text: str) -> list[list[str]]:
    """The rows of a table of seek, without topics."""
    header, *rows = (line.split() for line in text.splitlines())
    assert header == ["TOPIC", "PARTITION", "FROM", "TO"]
    return [row[1:] for row in rows]


def test_list_with_filters(group: Callable[..., str], kraftpy: Broker, topic: str) -> None:
    empty, stable = f"g1-{topic}", f"g2-{topic}"
    commit(kraftpy.bootstrap, empty, topic, 5)
    with member(kraftpy.bootstrap, stable, topic):
        states = {each["group"]: each for each in json.loads(group("list", "-o", "json"))}
        assert states[stable]["state"] == "Stable"
        assert states[empty] == {
            "group": empty,
            "type": "classic",
            "state": "Empty",
            "protocol_type": states[empty]["protocol_type"],
            "coordinator": 1,
        }
        assert [empty, "classic", "Empty", "1"] in map(str.split, group("list").splitlines())
        only_stable = group("list", "--state", "stable", "--type", "classic")
        assert stable in only_stable
        assert empty not in only_stable
        assert stable not in group("list", "--type", "consumer")


def test_describe_a_group_with_members(
    group: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    commit(kraftpy.bootstrap, name, topic, 10)
    with member(kraftpy.bootstrap, name, topic) as client:
        (described,) = json.loads(group("describe", name, "-o", "json"))
        head, protocol, _, members, row, _, *partitions = group("describe", name).splitlines()
        member_id = client.memberid()
    assert head == f"{name}: Stable, 1 member, lag 20, 1 partition without an offset"
    assert protocol.startswith("  classic protocol, assignor range, coordinator 1 (127.0.0.1:")
    assert members.split() == ["MEMBER", "CLIENT", "HOST", "TYPE", "READS"]
    assert row.split() == [member_id, "cook", "127.0.0.1", "classic", f"{topic}:0,1"]
    assert [line.split() for line in partitions] == [
        ["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER"],
        [topic, "0", "10", "30", "20", member_id],
        [topic, "1", "-", "30", "-", member_id],
    ]
    assert (described["state"], described["type"]) == ("Stable", "classic")
    assert (described["lag"], described["without_offset"]) == (20, 1)
    assert described["members"][0]["topics"] == [topic]
    assert described["partitions"][1] == {
        "topic": topic,
        "partition": 1,
        "offset": None,
        "end": 30,
        "lag": None,
        "member": member_id,
    }


def test_a_group_of_the_consumer_protocol(
    group: Callable[..., str], fail: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    with member(kraftpy.bootstrap, name, f"^{topic}", **{"group.protocol": "consumer"}) as client:
        client.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
        assert name in group("list", "--type", "consumer", "--state", "stable")
        (described,) = json.loads(group("describe", name, "-o", "json"))
        head, protocol, _, _, row, *_ = group("describe", name).splitlines()
        assert "first stop cook" in fail("seek", name, "--to", "start", "-t", topic)
        assert "has members" in fail("delete", name)
    assert head == f"{name}: Stable, 1 member, lag 20, 1 partition without an offset"
    assert protocol.startswith("  consumer protocol, assignor uniform, epoch ")
    assert row.split()[1:] == ["cook", "127.0.0.1", "consumer", f"{topic}:0,1"]
    (found,) = described["members"]
    both = [{"topic": topic, "partition": partition} for partition in (0, 1)]
    assert (found["partitions"], found["target"]) == (both, both)
    assert (found["epoch"], found["topics"]) == (described["epoch"], [])
    assert f"^{topic}" in found["regex"]
    assert moves(group("seek", name, "--to", "-1")) == [["0", "10", "29"], ["1", "-", "29"]]
    group("delete", name)


def test_a_group_whose_members_change_their_protocol(
    group: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    new = {"group.protocol": "consumer", "client.id": "new"}
    with member(kraftpy.bootstrap, name, topic, **new) as one:
        settings = consumer_settings(kraftpy.bootstrap, name) | {"client.id": "old"}
        other = Consumer(settings)
        other.subscribe([topic])
        wait_until(
            lambda: bool(one.poll(0.02) or other.poll(0.02) or other.assignment()), "an assignment"
        )
        (described,) = json.loads(group("describe", name, "-o", "json"))
        other.close()
    assert described["type"] == "consumer"
    types = {each["client"]: each["type"] for each in described["members"]}
    assert types == {"new": "consumer", "old": "classic"}


def test_lag_by_topic_and_in_its_order(
    group: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    other = f"a{topic}"
    output("topic", "create", other, bootstrap=kraftpy.bootstrap)
    commit(kraftpy.bootstrap, name, topic, 29, 5)
    commit(kraftpy.bootstrap, name, other, 0)
    (described,) = json.loads(group("describe", name, "--sort", "lag", "-o", "json"))
    shown = [(each["topic"], each["partition"], each["lag"]) for each in described["partitions"]]
    assert shown == [(topic, 1, 25), (topic, 0, 1), (other, 0, 0)]
    assert described["topics"] == [
        {"topic": topic, "partitions": 2, "lag": 26},
        {"topic": other, "partitions": 1, "lag": 0},
    ]
    assert described["lag"] == 26
    lines = group("describe", name).splitlines()
    assert lines[0] == f"{name}: Empty, 0 members, lag 26"
    assert [line.split() for line in lines[-2:]] == [[other, "1", "0"], [topic, "2", "26"]]


def test_what_there_is_not(fail: Callable[..., str], topic: str, name: str) -> None:
    for command in (("describe", name), ("delete", name), ("offsets", "show", name)):
        assert "`kraftpy group list` shows what there is" in fail(*command)
    assert "-t" in fail("seek", name, "--to", "start")
    assert "kraftpy topic create" in fail("seek", name, "--to", "start", "-t", "no-" + topic)
    assert "no partition 2, only 0 to 1" in fail("seek", name, "--to", "0", "-t", f"{topic}:0,2")
    assert "use --to" in fail("seek", name, "--shift", "1", "-t", topic)
    assert "committed nothing" in fail("seek", name, "--export")


def test_groups_of_a_cluster_that_loses_a_broker(
    kraftpy_cluster: Callable[..., Cluster],
) -> None:
    cluster = kraftpy_cluster(3, links=False)
    cluster.wait_healthy()
    output("topic", "create", "t", "-r", "1", "-p", "3", bootstrap=cluster.bootstrap)
    names = [f"g{number}" for number in range(8)]
    for name in names:
        commit(cluster.bootstrap, name, "t", 0, 0, 0)

    def coordinators() -> dict[str, int]:
        listed = json.loads(output("group", "list", "-o", "json", bootstrap=cluster.bootstrap))
        assert [each["group"] for each in listed] == names
        return {each["group"]: each["coordinator"] for each in listed}

    before = coordinators()
    assert len(set(before.values())) > 1
    down = before[names[0]]
    cluster.kill(down)
    done = run_command("group", "describe", names[0], "-o", "json", bootstrap=cluster.bootstrap)
    assert done.returncode == 1
    assert b"kraftpy cluster health" in done.stderr
    (described,) = json.loads(done.stdout)
    assert described["coordinator"] != down
    assert described["lag"] is None
    assert [row["lag"] for row in described["partitions"]].count(None) == 1
    assert down not in coordinators().values()


def test_watch_writes_a_line_for_each_look(kraftpy: Broker, topic: str, name: str) -> None:
    commit(kraftpy.bootstrap, name, topic, 10)
    command = ("group", "describe", name, "--watch", "--interval", "0.1")
    with running(*command, "-o", "json", bootstrap=kraftpy.bootstrap) as watching:
        assert json.loads(watching.stdout_line())[0]["lag"] == 20
        commit(kraftpy.bootstrap, name, topic, 30)
        wait_until(lambda: json.loads(watching.stdout_line())[0]["lag"] == 0, "there is no lag")
        assert watching.end(signal.SIGINT) == 130
    with running(*command, bootstrap=kraftpy.bootstrap) as watching:
        blocks = [watching.stdout_line() for _ in range(14)]
        assert watching.end(signal.SIGINT) == 130
    assert blocks[1:7] == blocks[8:14]
    assert blocks[1] == f"{name}: Empty, 0 members, lag 0"


def test_watch_redraws_a_terminal(kraftpy: Broker, topic: str, name: str) -> None:
    commit(kraftpy.bootstrap, name, topic, 10)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kraftpy",
            "group",
            "describe",
            name,
            "--watch",
            "--interval",
            "0.1",
        ],
        stdout=slave,
        env={**os.environ, "KRAFTPY_BOOTSTRAP": kraftpy.bootstrap, "LINES": "7", "COLUMNS": "80"},
    )
    os.close(slave)
    try:
        seen = b""
        while seen.count(b"\x1b[H\x1b[J") < 3:
            seen += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(master)
    screen = seen.split(b"\x1b[H\x1b[J")[1].decode().splitlines()
    assert screen[2] == f"{name}: Empty, 0 members, lag 20"
    assert screen[-1] == "... 1 line more"
    assert len(screen) == 7


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("start", 0),
        ("end", 30),
        ("-10", 20),
        ("+5", 5),
        ("7", 7),
        ("@1700000000012", 12),
        ("@2023-11-14T22:13:20.021Z", 21),
        ("@2999-01-01T00:00:00Z", 30),
    ],
)
def test_seek_to(
    to: str,
    expected: int,
    group: Callable[..., str],
    kraftpy: Broker,
    topic: str,
    name: str,
) -> None:
    commit(kraftpy.bootstrap, name, topic, 3)
    rows = [["0", "3", str(expected)], ["1", "-", str(expected)]]
    assert moves(group("seek", name, "--to", to)) == rows
    client = Consumer(consumer_settings(kraftpy.bootstrap, name))
    found = client.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], TIMEOUT_S)
    client.close()
    assert [each.offset for each in found] == [expected, expected]


def test_seek_shifts_and_stays_inside_the_log(
    group: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    commit(kraftpy.bootstrap, name, topic, 10, 25)
    assert moves(group("seek", name, "--shift", "-3")) == [["0", "10", "7"], ["1", "25", "22"]]
    done = run_command("group", "seek", name, "--shift", "10", bootstrap=kraftpy.bootstrap)
    assert moves(done.stdout.decode()) == [["0", "7", "17"], ["1", "22", "30"]]
    assert f"32 is behind the end of {topic}-1: 30 is taken" in done.stderr.decode()


def test_seek_of_chosen_partitions_and_dry_run(
    group: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    commit(kraftpy.bootstrap, name, topic, 10, 20)
    scope = ("-t", f"{topic}:1")
    assert moves(group("seek", name, "--to", "start", *scope, "--dry-run")) == [["1", "20", "0"]]
    assert group("seek", name, "--export") == f"{topic},0,10\n{topic},1,20\n"
    planned = group("seek", name, "--to", "start", *scope, "--export")
    assert planned == f"{topic},1,0\n"
    assert json.loads(group("seek", name, "--to", "end", *scope, "-o", "json")) == [
        {"topic": topic, "partition": 1, "from": 20, "to": 30, "metadata": ""}
    ]
    assert group("seek", name, "--export") == f"{topic},0,10\n{topic},1,30\n"


def test_seek_takes_back_what_it_exported(
    group: Callable[..., str], kraftpy: Broker, topic: str, name: str, tmp_path: Path
) -> None:
    commit(kraftpy.bootstrap, name, topic, 10, 20)
    csv, document, kafka = (tmp_path / each for each in ("a.csv", "a.json", "kafka.csv"))
    csv.write_text(group("seek", name, "--export"))
    document.write_text(group("offsets", "show", name, "-o", "json"))
    kafka.write_text(f'"{name}",{topic},0,11\nother,{topic},0,29\n')
    for file in (csv, document):
        group("seek", name, "--to", "start")
        group("seek", name, "--file", str(file))
        assert group("seek", name, "--export") == f"{topic},0,10\n{topic},1,20\n"
    assert moves(group("seek", name, "--file", str(kafka))) == [["0", "10", "11"]]


def test_seek_keeps_the_metadata_and_takes_it_back_from_a_file(
    group: Callable[..., str], kraftpy: Broker, topic: str, name: str, tmp_path: Path
) -> None:
    # confluent-kafka reads and writes a byte behind the text.
    client = kafka.KafkaConsumer(bootstrap_servers=kraftpy.bootstrap, group_id=name)
    places = [kafka.TopicPartition(topic, partition) for partition in (0, 1)]
    client.commit(
        {
            place: kafka.OffsetAndMetadata(offset, text, -1)
            for place, offset, text in zip(places, (10, 20), ("at, 1", ""), strict=True)
        }
    )
    exported = group("seek", name, "--export")
    assert exported == f'{name},{topic},0,10,"at, 1"\n{name},{topic},1,20,\n'
    file = tmp_path / "before.csv"
    file.write_text(exported)

    def committed() -> list[tuple[int, str]]:
        found = [client.committed(place, metadata=True) for place in places]
        return [(each.offset, each.metadata) for each in found]

    shown = group("seek", name, "--shift", "-1")
    assert [line.split()[2:] for line in shown.splitlines()] == [
        ["FROM", "TO", "METADATA"],
        ["10", "9", "at,", "1"],
        ["20", "19"],
    ]
    assert committed() == [(9, "at, 1"), (19, "")]
    group("seek", name, "--shift", "1", "--metadata", "moved")
    assert committed() == [(10, "moved"), (20, "moved")]
    group("seek", name, "--file", str(file))
    assert committed() == [(10, "at, 1"), (20, "")]
    client.close()


def test_seek_refuses_while_there_are_members(
    fail: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    with member(kraftpy.bootstrap, name, topic):
        to = ("seek", name, "--to", "5", "-t", topic)
        assert "first stop cook at 127.0.0.1" in fail(*to)
        done = run_command("group", *to, "--dry-run", bootstrap=kraftpy.bootstrap)
        assert moves(done.stdout.decode()) == [["0", "-", "5"], ["1", "-", "5"]]
        assert done.returncode == 1
        assert "kraftpy group describe" in fail("delete", name)


def test_delete(group: Callable[..., str], kraftpy: Broker, topic: str, name: str) -> None:
    commit(kraftpy.bootstrap, name, topic, 10)
    done = run_command(
        "group", "delete", name, f"no-{name}", "-o", "json", bootstrap=kraftpy.bootstrap
    )
    assert done.returncode == 1
    deleted, missing = json.loads(done.stdout)
    assert deleted == {"group": name, "status": "deleted"}
    assert missing["error"] == "GROUP_ID_NOT_FOUND"
    assert name not in group("list")


def test_offsets_are_shown_and_deleted(
    group: Callable[..., str], fail: Callable[..., str], kraftpy: Broker, topic: str, name: str
) -> None:
    commit(kraftpy.bootstrap, name, topic, 10, 20)
    with member(kraftpy.bootstrap, name, topic):
        assert "stop its members" in fail("offsets", "delete", name, "-t", topic)
    rows = [line.split() for line in group("offsets", "show", name).splitlines()]
    assert rows == [
        ["TOPIC", "PARTITION", "OFFSET", "EPOCH", "METADATA"],
        [topic, "0", "10", "-"],
        [topic, "1", "20", "-"],
    ]
    group("offsets", "delete", name, "-t", f"{topic}:0")
    assert group("seek", name, "--export") == f"{topic},1,20\n"
    again = json.loads(group("offsets", "delete", name, "-t", topic, "-o", "json"))
    assert [each["status"] for each in again] == ["none", "deleted"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("seek", "g"),
        ("seek", "g", "--to", "noon"),
        ("seek", "g", "--to", "start:end"),
        ("seek", "g", "--to", "start", "--shift", "1"),
        ("seek", "g", "--to", "start", "-t", "t:"),
        ("seek", "g", "--to", "start", "-t", "t:x"),
        ("seek", "g", "--file", "/no/such/file"),
        ("offsets", "delete", "g"),
        ("describe", "--sort", "size"),
        ("list", "--state", "sleeping"),
        ("delete",),
    ],
    ids=str,
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert "Usage" in failure("group", *arguments, code=2)


def test_a_file_without_offsets_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text("t,0,many\n")
    said = failure("group", "seek", "g", "--file", str(file), code=2)
    assert "line 1: 'many' is no offset" in said
    assert "--export" in said


def test_without_a_broker() -> None:
    assert "kraftpy dev" in failure("group", "list", code=3)


@pytest.fixture
def shares(kraftpy: Broker, topic: str) -> Iterator[Shares]:
    """A share group that begins at 3 and 10, without members."""
    with Wire(kraftpy.host, kraftpy.port) as wire:
        group = Shares(wire, topic, f"share-{topic}")
        assert group.alter({0: 3, 1: 10}).error_code == 0
        yield group


def test_share_groups_are_shown(
    group: Callable[..., str], fail: Callable[..., str], shares: Shares
) -> None:
    name = shares.name
    shares.joined("cook")
    assert [name, "share", "Stable", "1"] in map(
        str.split, group("list", "--type", "share").splitlines()
    )
    assert name not in group("list", "--type", "consumer")
    (told,) = json.loads(group("describe", name, "-o", "json"))
    assert (told["type"], told["state"], told["assignor"]) == ("share", "Stable", "simple")
    assert [member["member"] for member in told["members"]] == ["cook"]
    assert [(row["offset"], row["lag"]) for row in told["partitions"]] == [(3, 27), (10, 20)]
    assert name in group("describe", name)
    assert "has members: stop them first" in fail("delete", name)
    assert "in use: first stop" in fail("seek", name, "--to", "start")
    assert "has members" in fail("offsets", "delete", name, "-t", shares.topic)
    shares.left("cook")
    assert "deleted" in group("delete", name)
    assert name not in group("list")


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (("--to", "start"), [0, 0]),
        (("--to", "end"), [30, 30]),
        (("--to", "-4"), [26, 26]),
        (("--to", "7"), [7, 7]),
        (("--to", "@1700000000012"), [12, 12]),
        (("--to", "@-1h"), [30, 30]),
        (("--shift", "5"), [8, 15]),
    ],
)
def test_share_groups_seek(
    group: Callable[..., str], shares: Shares, to: tuple[str, ...], expected: list[int]
) -> None:
    rows = moves(group("seek", shares.name, *to))
    assert rows == [["0", "3", str(expected[0])], ["1", "10", str(expected[1])]]
    assert [start for start, _ in shares.offsets().values()] == expected


def test_share_groups_take_back_what_they_exported(
    group: Callable[..., str], kraftpy: Broker, shares: Shares, tmp_path: Path
) -> None:
    topic, name = shares.topic, shares.name
    csv, document = tmp_path / "a.csv", tmp_path / "a.json"
    csv.write_text(group("seek", name, "--export"))
    assert csv.read_text() == f"{topic},0,3\n{topic},1,10\n"
    document.write_text(group("offsets", "show", name, "-o", "json"))
    for file in (csv, document):
        group("seek", name, "--to", "end", "-t", topic)
        assert moves(group("seek", name, "--file", str(file), "--dry-run"))[0] == ["0", "30", "3"]
        group("seek", name, "--file", str(file))
        assert group("seek", name, "--export") == csv.read_text()
    wrong = ("group", "seek", name, "--to", "end", "--metadata", "x")
    done = run_command(*wrong, bootstrap=kraftpy.bootstrap)
    assert (done.returncode, b"does not go with share groups" in done.stderr) == (2, True)
    deleted = group("offsets", "delete", name, "-t", topic)
    assert [line.split()[2] for line in deleted.splitlines()[1:]] == ["deleted"] * 2
    assert not shares.offsets()
    assert group("offsets", "delete", name, "-t", topic).split()[-1] == "none"

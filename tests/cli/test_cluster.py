"""`kraftpy cluster` against one broker, and against several of which some die."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from kraftpy.core.metadata import LEVEL
from kraftpy.testing import Broker, Cluster
from kraftpy.wording import time_text
from tests.waiting import wait_until

from .commands import failure, output, run_command, running

LEADER_THROTTLE = "leader.replication.throttled.replicas"


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def cluster(kraftpy_cluster: Callable[..., Cluster]) -> Cluster:
    started = kraftpy_cluster(3, links=False)
    started.wait_healthy()
    return started


class Commands:
    """`kraftpy cluster ...` against one bootstrap address."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *args: str) -> str:
        return output("cluster", *args, bootstrap=self.bootstrap)

    def json(self, *args: str, code: int = 0) -> Any:
        done = run_command("cluster", *args, "-o", "json", bootstrap=self.bootstrap)
        assert done.returncode == code, done.stderr.decode()
        return json.loads(done.stdout)

    def fail(self, *args: str, code: int = 1) -> str:
        return failure("cluster", *args, code=code, bootstrap=self.bootstrap)

    def create(self, topic: str, *args: str) -> None:
        output("topic", "create", topic, *args, bootstrap=self.bootstrap)

    def topic(self, topic: str) -> Any:
        return json.loads(
            output("topic", "describe", topic, "-o", "json", bootstrap=self.bootstrap)
        )[0]

    def replicas(self, topic: str) -> list[list[int]]:
        return [each["replicas"] for each in self.topic(topic)["partitions"]]

    def wait_fenced(self, *brokers: int) -> None:
        def fenced() -> bool:
            done = run_command("cluster", "health", "-o", "json", bootstrap=self.bootstrap)
            return bool(json.loads(done.stdout)["fenced"] == list(brokers))

        wait_until(fenced, f"{brokers} are fenced")


@pytest.fixture
def one(kraftpy: Broker) -> Commands:
    return Commands(kraftpy.bootstrap)


def fill(bootstrap: str, topic: str, partitions: int, size_bytes: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(size_bytes // 1000):
        producer.produce(topic, b"x" * 1000, partition=number % partitions)
    assert producer.flush(20) == 0


def plan_file(path: Path, targets: dict[tuple[str, int], list[int]]) -> str:
    partitions = [
        {"topic": topic, "partition": partition, "replicas": replicas}
        for (topic, partition), replicas in targets.items()
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


# -- one broker


def test_one_node(one: Commands, name: str) -> None:
    one.create(name, "-p", "2")
    known = one.json("info")
    assert (known["controller"], known["voters"]) == (1, [1])
    assert known["brokers"] == known["brokers_up"] == [1]
    assert known["topics"] >= 1
    assert known["partitions"] >= 2
    lines = dict(line.split(None, 1) for line in one("info").splitlines())
    assert lines["cluster"] == known["cluster"]
    assert lines["brokers"] == "1 (1 of 1 up)"

    (broker,) = one.json("brokers")
    assert (broker["broker"], broker["address"]) == (1, one.bootstrap)
    assert (broker["state"], broker["rack"]) == ("up", None)
    assert broker["leads"] == broker["replicas"] >= 2
    header, row = one("brokers").splitlines()
    assert header.split() == [
        *("BROKER", "ADDRESS", "METRICS", "RACK", "REGISTERED"),
        *("STATE", "LEADS", "REPLICAS", "SIZE"),
    ]
    registered = time_text(broker["registered_ms"])
    assert row.split()[:6] == ["1", one.bootstrap, broker["metrics"], "-", registered, "up"]
    assert 0 <= time.time() * 1000 - broker["registered_ms"] < 3_600_000
    with urlopen(f"http://{broker['metrics']}/healthz") as answer:
        assert answer.status == 200

    described = one.json("quorum")
    (voter,) = described["nodes"]
    assert (described["leader"], voter["node"], voter["role"], voter["lag"]) == (1, 1, "leader", 0)
    assert voter["log_end_offset"] >= described["high_watermark"] > 0
    assert (described["metadata_level"], described["next_metadata_level"]) == (LEVEL, None)
    shown = one("quorum").splitlines()
    assert shown[1].split()[:2] == ["1", "leader"]
    assert shown[2:] == [f"metadata level {LEVEL}"]
    assert one("raise-level") == f"the metadata level is {LEVEL} already\n"
    assert one.json("raise-level") == {"metadata_level": LEVEL, "raised_from": LEVEL}
    assert one.json("quorum", "--transfer", "1")["leader"] == 1

    assert one.json("health")["healthy"]
    assert one("health").startswith("healthy: 1 broker, ")

    elections = one.json("elect", "-t", name)
    assert [each["status"] for each in elections] == ["not needed"] * 2
    assert one.json("elect", "-t", name, "-p", "1") == [
        {"topic": name, "partition": 1, "status": "not needed"}
    ]
    assert one.json("elect") == []
    assert one.json("reassign", "--list") == []
    assert one.json("reassign", "--watch") == []
    assert one.json("reassign", "--cancel") == []
    assert one.json("reassign", "-t", name) == []
    assert one.json("reassign", "--brokers", "1", "--dry-run") == {"version": 1, "partitions": []}


def test_what_is_not_there(one: Commands, name: str, tmp_path: Path) -> None:
    assert f"topic '{name}' does not exist" in one.fail("elect", "-t", name)
    assert f"topic '{name}' does not exist" in one.fail("reassign", "-t", name)
    assert "there is no broker 9" in one.fail("reassign", "--brokers", "1,9")
    assert "there is no broker 9" in one.fail("decommission", "9")
    plan = plan_file(tmp_path / "plan", {(name, 0): [1]})
    assert f"there is no partition {name}-0" in one.fail("reassign", plan)
    one.create(name)
    (result,) = one.json("elect", "-t", name, "-p", "7", code=1)
    assert result["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert "1 of 1 election failed" in one.fail("elect", "-t", name, "-p", "7")
    plan = plan_file(tmp_path / "plan", {(name, 0): [9]})
    assert "there is no broker 9" in one.fail("reassign", plan)
    assert "2 replicas need 2 brokers" in one.fail("reassign", "-t", name, "--replicas", "2")
    assert "start one, or reduce the topic's replicas" in one.fail("decommission", "1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("reassign",),
        ("reassign", "--list", "--cancel"),
        ("reassign", "--list", "-t", "t"),
        ("reassign", "--replicas", "2"),
        ("reassign", "--cancel", "--brokers", "1"),
        ("reassign", "--dry-run", "--list"),
        ("reassign", "--throttle", "1000"),
        ("reassign", "-t", "t", "--throttle", "0"),
        ("reassign", "--brokers", "1,x"),
        ("reassign", "--brokers", "-1"),
        ("reassign", "--brokers", "99999999999"),
        ("reassign", "/no/such/file"),
        ("elect", "-p", "1"),
        ("elect", "-t", "a", "-t", "b", "-p", "1"),
        ("elect", "--unclean"),
        ("decommission",),
        ("decommission", "-1"),
        ("decommission", "one"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert "Usage" in failure("cluster", *arguments, code=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "no object that has"),
        ("[" * 100_000, "recursion"),
        ('{"version": 2, "partitions": []}', "version 2 is not 1"),
        ('{"version": 1}', "'partitions' is missing"),
        ('{"partitions": []}', "it has no partitions"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "'replicas' is missing"),
        ('{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}', "is not a topic"),
        ('{"partitions": [{"topic": 5, "partition": 0, "replicas": [1]}]}', "is not a topic"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}', "is not a topic"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/a"]}]}',
            "t-0 has log_dirs",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            ' {"topic": "t", "partition": 0, "replicas": [2]}]}',
            "t-0 comes twice",
        ),
    ],
)
def test_a_file_that_is_no_plan(text: str, reason: str) -> None:
    said = failure("cluster", "reassign", "-", code=2, stdin=text.encode())
    assert reason in said
    assert "PLAN" in said


@pytest.mark.parametrize(
    "command",
    [("info",), ("health",), ("brokers",), ("quorum",), ("elect",), ("decommission", "1")],
)
def test_without_a_broker(command: tuple[str, ...]) -> None:
    said = failure("cluster", *command, code=3, bootstrap="127.0.0.1:1")
    assert "127.0.0.1:1: connection refused" in said


# -- three brokers


def test_health_and_elections_when_a_broker_dies_and_comes_back(cluster: Cluster) -> None:
    run = Commands(cluster.bootstrap)
    run.create("orders", "-p", "6")
    run.create("single", "-p", "3", "-r", "1", "-c", "min.insync.replicas=1")
    run.create("strict", "-p", "3", "-r", "2", "-c", "min.insync.replicas=2")
    fill(cluster.bootstrap, "strict", 3, 30_000)
    cluster.wait_healthy()
    assert run("health").startswith("healthy: 3 brokers, 12 partitions")
    before = run.json("quorum")
    assert sorted(each["role"] for each in before["nodes"]) == ["leader", "voter", "voter"]
    after = run.json("quorum", "--transfer", str(before["leader"] % 3 + 1))
    assert after["leader"] == before["leader"] % 3 + 1 == cluster.controller()
    assert after["epoch"] > before["epoch"]
    assert "9" in run.fail("quorum", "--transfer", "9")
    led = [each["partition"] for each in run.topic("orders")["partitions"] if each["leader"] == 2]
    assert led

    cluster.kill(2)
    run.wait_fenced(2)
    found = run.json("health", code=5)
    assert not found["healthy"]
    problems = {
        kind: {(each["topic"], each["partition"]) for each in found[kind]}
        for kind in ("offline", "under_min_isr", "under_replicated")
    }
    strict = run.topic("strict")["partitions"]
    # A new leader can't tell the end before its followers have confirmed it.
    assert all(each["end_offset"] == 10 for each in strict if 2 not in each["replicas"])
    assert {each["start_offset"] for each in strict} == {0}
    assert problems["under_replicated"] == {("orders", index) for index in range(6)}
    assert problems["under_min_isr"] == {
        ("strict", each["partition"]) for each in strict if 2 in each["replicas"]
    }
    assert [name for name, _ in problems["offline"]] == ["single"]
    said = run_command("cluster", "health", bootstrap=run.bootstrap)
    assert said.returncode == 5
    text = said.stdout.decode()
    assert "broker 2 is down" in text
    row = next(line.split() for line in text.splitlines() if line.startswith("under-replicated"))
    assert row == ["under-replicated", "orders", "6", "0-5", "2"]
    said = run_command("cluster", "health", "--partitions", bootstrap=run.bootstrap)
    rows = [line for line in said.stdout.decode().splitlines() if line.startswith("under-repl")]
    assert len(rows) == 6
    states = {each["broker"]: each["state"] for each in run.json("brokers")}
    assert states == {1: "up", 2: "fenced", 3: "up"}

    results = run.json("elect", "-t", "orders", code=1)
    errors = {each["partition"]: each.get("error") for each in results}
    assert errors == {
        index: "PREFERRED_LEADER_NOT_AVAILABLE" if index in led else None for index in range(6)
    }
    (offline,) = problems["offline"]
    unclean = ("elect", "-t", offline[0], "-p", str(offline[1]), "--unclean")
    (result,) = run.json(*unclean, code=1)
    assert result["error"] == "ELIGIBLE_LEADERS_NOT_AVAILABLE"

    cluster.restart(2)
    cluster.wait_healthy()
    assert run.json("health")["healthy"]
    elected = {
        each["partition"]
        for each in run.json("elect", "-t", "orders")
        if each["status"] == "elected"
    }
    # The controller gives leaderships back on its own, too; it may have been quicker.
    assert elected <= set(led)
    assert all(each["leader"] == each["replicas"][0] for each in run.topic("orders")["partitions"])


def test_a_broker_without_a_quorum_says_so(cluster: Cluster) -> None:
    run = Commands(cluster.bootstrap)
    cluster.kill(1)
    cluster.kill(2)
    health = ("cluster", "health", "--timeout", "1", "-o", "json")

    def complains() -> bool:
        # A leader that has lost its followers notices within its election timeout.
        return run_command(*health, bootstrap=run.bootstrap).returncode == 5

    wait_until(complains, "a cluster without a quorum is not healthy")
    found = run.json(*health[1:-2], code=5)
    assert [text.partition(",")[0] for text in found["quorum"]] == ["no controller answers"]
    assert "NOT_CONTROLLER" in run.fail("quorum", "--timeout", "1")
    assert "NOT_CONTROLLER" in run.fail("elect", "--timeout", "1")
    create = ("topic", "create", "orders", "--timeout", "1")
    said = failure(*create, code=1, bootstrap=run.bootstrap)
    assert "the change was not made" in said

    def is_told_as_down() -> bool:
        states = {each["broker"]: each["state"] for each in run.json("brokers")}
        assert states.keys() == {1, 2, 3}  # the one that answers was left out once it was cut off
        return states[3] == "fenced"

    wait_until(is_told_as_down, "the last broker leads nothing any more")
    assert run.json(*health[1:-2], code=5)["brokers"] == [1, 2, 3]
    cluster.kill(3)  # a node that can't hand over would take its time to stop


def test_replicas_move_as_a_plan_says(cluster: Cluster, tmp_path: Path) -> None:
    run = Commands(cluster.bootstrap)
    plan = tmp_path / "plan.json"
    run.create("orders", "-p", "3", "-r", "2")
    fill(cluster.bootstrap, "orders", 3, 300_000)
    before = run.replicas("orders")
    assert all(len(each) == 2 for each in before)

    document = run.json("reassign", "-t", "orders", "--replicas", "3", "--dry-run")
    assert [each["replicas"][:2] for each in document["partitions"]] == before
    plan.write_text(json.dumps(document))
    assert run("reassign", str(plan), "--dry-run").splitlines()[0].split() == [
        "TOPIC",
        "PARTITION",
        "FROM",
        "TO",
    ]
    assert run.replicas("orders") == before, "nothing moves in a dry run"

    watch = ("cluster", "reassign", str(plan), "--watch", "--throttle", "50000")
    done = run_command(*watch, bootstrap=run.bootstrap)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"moved 3 partitions\n"
    *_, under_way, last = done.stderr.decode().splitlines()
    assert re.fullmatch(r"[012] of 3 partitions moved, \d.* KB of 30\d.\d KB", under_way)
    assert re.fullmatch(r"3 of 3 partitions moved, (30\d.\d KB) of \1", last)
    assert run.replicas("orders") == [each["replicas"] for each in document["partitions"]]
    assert run.topic("orders")["configs"][LEADER_THROTTLE]["value"] == "", "the throttle is off"
    sizes = {each["broker"]: each["bytes"] for each in run.json("brokers")}
    assert len(set(sizes.values())) == 1, "each broker has all of it"

    back = plan_file(plan, {("orders", index): each for index, each in enumerate(before)})
    assert [each["status"] for each in run.json("reassign", back, "--watch")] == ["moved"] * 3
    assert run.replicas("orders") == before
    (spread,) = run.json("reassign", "-t", "orders", "--brokers", "1,2", "--watch")[:1]
    assert spread["status"] == "moved"
    assert {broker for each in run.replicas("orders") for broker in each} == {1, 2}


def test_a_move_that_cant_end_is_listed_and_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    run = Commands(cluster.bootstrap)
    plan = plan_file(tmp_path / "assignment", {("orders", 0): [1, 2]})
    run.create("orders", "-r", "3")
    run.json("reassign", plan, "--watch")
    cluster.kill(3)
    run.wait_fenced(3)

    plan = plan_file(tmp_path / "plan", {("orders", 0): [1, 3]})
    (started,) = run.json("reassign", plan, "--throttle", "1000000")
    assert started == {
        "topic": "orders",
        "partition": 0,
        "from": [1, 2],
        "to": [1, 3],
        "status": "started",
    }
    assert run.topic("orders")["configs"][LEADER_THROTTLE]["value"] == "0:1,0:2"
    (moving,) = run.json("reassign", "--list")
    assert (moving["adding"], moving["removing"]) == ([3], [2])
    row = run("reassign", "--list").splitlines()[1].split()
    assert row[:5] == ["orders", "0", "1,3,2", "3", "2"]
    health = run.json("health", code=5)
    assert (health["reassigning"], health["under_replicated"]) == (1, [])

    with running("cluster", "reassign", "--watch", bootstrap=run.bootstrap) as watching:
        assert watching.stderr_line().startswith("0 of 1 partition moved")
        (cancelled,) = run.json("reassign", "--cancel", "-t", "orders")
        assert cancelled["status"] == "cancelled"
        assert watching.process.wait(30) == 1
        assert "it was cancelled" in watching.rest_of_stderr()
    assert run.json("reassign", "--list") == []
    assert sorted(run.replicas("orders")[0]) == [1, 2]
    assert run.topic("orders")["configs"][LEADER_THROTTLE]["value"] == "", "the throttle is off"


def test_a_broker_is_decommissioned(kraftpy_cluster: Callable[..., Cluster]) -> None:
    cluster = kraftpy_cluster(4, links=False)
    run = Commands(cluster.bootstrap)
    run.create("orders", "-p", "8")
    fill(cluster.bootstrap, "orders", 8, 800_000)
    roles = {each["node"]: each["role"] for each in run.json("quorum")["nodes"]}
    assert roles.pop(4) == "observer"
    assert sorted(roles.values()) == ["leader", "voter", "voter"]
    plan = run.json("decommission", "4", "--dry-run")
    there = [index for index, each in enumerate(run.replicas("orders")) if 4 in each]
    assert [each["partition"] for each in plan["partitions"]] == there
    with running("cluster", "decommission", "4", "-o", "json", bootstrap=run.bootstrap) as command:
        while not (line := command.stderr_line()).startswith("broker 4 holds nothing any more"):
            assert " moved" in line
        assert all(4 not in each for each in run.replicas("orders"))
        cluster.stop(4)
        assert json.loads(command.stdout_line()) == {
            "broker": 4,
            "status": "unregistered",
            "partitions_moved": len(there),
        }
        assert command.process.wait(10) == 0
    assert [each["broker"] for each in run.json("brokers")] == [1, 2, 3]
    assert run.json("health")["healthy"]
    said = run.fail("decommission", "3")
    assert "node 3 also votes in the metadata quorum" in said
    assert "orders-0 needs 3 brokers and there are 2 brokers to take it" in said


def test_the_size_of_what_no_broker_tells_is_not_0(cluster: Cluster) -> None:
    run = Commands(cluster.bootstrap)
    for topic, *copies in (("alone", "-r", "1"), ("everywhere", "-r", "3")):
        run.create(topic, *copies)
        fill(cluster.bootstrap, topic, 1, 2_000)
    run.create("spread", "-r", "1", "-p", "3")
    fill(cluster.bootstrap, "spread", 3, 300_000)
    victim = cluster.leader_of("alone")
    cluster.kill(victim)
    run.wait_fenced(victim)

    listed = ("topic", "list", "--size")
    alone, everywhere, spread = json.loads(output(*listed, "-o", "json", bootstrap=run.bootstrap))
    assert (alone["bytes"], alone["bytes_total"]) == (None, None)
    assert everywhere["bytes_total"] == 2 * everywhere["bytes"] > 4_000
    assert spread["bytes"] is None, "a part of it isn't its size"
    assert spread["bytes_total"] > 0
    rows = output(*listed, bootstrap=run.bootstrap).splitlines()[1:]
    assert rows[0].split() == ["alone", "1", "1", "1", "offline", "-", "-"]

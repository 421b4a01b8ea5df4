"""kafka-share-groups and kafka-configs on share groups: what an operator of share groups types.

There is no consumer in it: members are heartbeats of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kraftpy.testing import Broker
from tests.conformance.tool_runner import ToolRunner
from tests.server.test_produce import batch
from tests.server.test_share_groups import Group, errors_of
from tests.server.wire import Wire, produce
from tests.waiting import wait_until

Tool = Callable[..., str]
Lines = Callable[..., list[list[str]]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(scope="module")
def tool(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    with ToolRunner(tmp_path_factory.mktemp("tools") / "log") as runner:

        def run(name: str, *words: str) -> str:
            ended = runner.run(name, "--bootstrap-server", broker.bootstrap, *words)
            return ended.out + ended.err

        yield run


@pytest.fixture
def share_groups(tool: Tool) -> Lines:
    """The lines of the tool's answer but the empty ones, as words."""

    def run(*words: str) -> list[list[str]]:
        said = tool("kafka-share-groups", *words)
        return [line.split() for line in said.splitlines() if line.strip()]

    return run


@pytest.fixture(scope="module")
def topic(broker: Broker, tool: Tool) -> str:
    tool("kafka-topics", "--create", "--topic", "t", "--partitions", "2")
    with Wire(broker.host, broker.port) as wire:
        for _ in range(3):
            assert produce(wire, "t", batch(b"x"), partition=1).error_code == 0
    return "t"


@pytest.fixture
def group(broker: Broker, topic: str) -> Iterator[Group]:
    with Wire(broker.host, broker.port) as wire:
        yield Group(wire, topic)


def test_the_life_of_a_group(share_groups: Lines, group: Group) -> None:
    group.joined("m")
    of_group = ("--group", group.name)
    assert [group.name] in share_groups("--list")
    assert [group.name, "Stable"] in share_groups("--list", "--state", "stable")
    state = share_groups("--describe", "--state", *of_group)
    assert state[0][:2] == ["GROUP", "COORDINATOR"]
    assert state[1][0] == group.name
    assert state[1][-2:] == ["Stable", "1"]
    members = share_groups("--describe", "--members", *of_group)
    assert members[1][:2] == [group.name, "m"]
    assert members[1][-1] == "t:0,1"
    offsets = share_groups("--describe", "--offsets", *of_group)
    assert offsets[0] == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    assert [group.name, "t", "1", "-", "-"] in offsets

    group.left("m")
    wait_until(lambda: group.describe().group_state == "Empty", "nobody is there", 10)
    reset = ("--reset-offsets", "--topic", "t", "--to-earliest", "--execute")
    assert [group.name, "t", "1", "0"] in share_groups(*reset, *of_group)
    offsets = share_groups("--describe", "--offsets", *of_group)
    assert [group.name, "t", "1", "0", "3"] in offsets
    assert ["t", "Successful"] in share_groups("--delete-offsets", "--topic", "t", *of_group)
    assert group.offsets() == {}
    said = share_groups("--delete", *of_group)
    assert "successful" in " ".join(said[0])
    assert [group.name] not in share_groups("--list")


def test_a_group_with_members_is_left_alone(share_groups: Lines, group: Group) -> None:
    group.joined("m")
    said = share_groups("--delete", "--group", group.name)
    assert f"Share group '{group.name}' is not EMPTY." in " ".join(said[1])
    assert [group.name] in share_groups("--list")
    group.left("m")
    assert errors_of(group.alter({0: 0}))[0] == 0


def test_settings_of_a_group(tool: Tool, group: Group) -> None:
    def configs(*words: str) -> str:
        of_group = ("--entity-type", "groups", "--entity-name", group.name)
        return tool("kafka-configs", *of_group, *words)

    wanted = "share.session.timeout.ms=50000,share.auto.offset.reset=earliest"
    assert "Completed" in configs("--alter", "--add-config", wanted)
    shown = configs("--describe")
    assert "share.session.timeout.ms=50000" in shown
    assert "share.auto.offset.reset=earliest" in shown
    everything = configs("--describe", "--all")
    for default in (
        "share.heartbeat.interval.ms=5000",
        "share.record.lock.duration.ms=30000",
        "share.delivery.count.limit=5",
        "share.partition.max.record.locks=2000",
        "share.isolation.level=read_uncommitted",
        "share.renew.acknowledge.enable=true",
        "share.assignment.interval.ms=1000",
        "consumer.session.timeout.ms=45000",
    ):
        assert default in everything, default
    refused = configs("--alter", "--add-config", "share.session.timeout.ms=1")
    assert "must be in the range 45000 to 60000" in refused

"""`kraftpy pipeline mirror` with several topics: as they come, from two clusters, with groups."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster as Client
from kraftpy.client.consumer import Consumer
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.offsets import (
    LATEST,
    READ_COMMITTED,
    OffsetAndMetadata,
    Partition,
    list_offsets,
)
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.mirror import Cycle, Mirror
from kraftpy.pipeline.mirrored import Names
from kraftpy.pipeline.target import Target
from kraftpy.protocol.errors import KafkaError
from kraftpy.spark.positions import Pattern
from kraftpy.testing import Broker, Cluster
from tests.spark.topics import (
    create_topic,
    delete_before,
    delete_topic,
    end_of,
    fill,
    numbered,
    on_cluster,
)
from tests.waiting import wait_until

ONCE = {"exactlyOnce": "true"}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a source and a target."""
    near, far = tmp_path_factory.mktemp("near"), tmp_path_factory.mktemp("far")
    with Broker(dir=near) as source, Broker(dir=far) as target:
        yield source.bootstrap, target.bootstrap


class Following:
    """A mirror of a pattern, and what is on both sides."""

    def __init__(
        self, spark: Any, source: str, target: str, folder: Path, names: Names, **more: Any
    ) -> None:
        self.spark = spark
        self.source = source
        self.target = target
        self.names = names
        self._folder = folder
        self._to_options = more.pop("to_options", {})
        self._more = more

    def mirror(self) -> Mirror:
        target = Target(self.target, "", self._to_options)
        door = Door(self.source, "kraftpy", {})
        spark = lambda: self.spark  # noqa: E731 - as a command has it
        return Mirror(door, self.names, target, self._folder, spark, **self._more)

    def copy(self) -> Cycle:
        (cycle,) = self.mirror().cycles(every_s=None, stop=threading.Event())
        return cycle

    def assert_alike(self, topic: str) -> None:
        assert log_of(self.target, self.names.copy_of(topic)) == log_of(self.source, topic)


def log_of(bootstrap: str, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    """The records of each partition in their order, but for what was aborted."""

    async def work(cluster: Client) -> dict[int, list[tuple[Any, ...]]]:
        numbers = sorted((await cluster.topic(topic)).partitions)
        found: dict[int, list[tuple[Any, ...]]] = {number: [] for number in numbers}
        names = [(topic, number) for number in numbers]
        ends = await list_offsets(cluster, dict.fromkeys(names, LATEST), isolation=READ_COMMITTED)
        async with (
            asyncio.timeout(60),
            Consumer(
                cluster, auto_offset_reset="earliest", isolation_level="read_committed"
            ) as consumer,
        ):
            consumer.assign(names)
            for name, end in ends.items():
                while await consumer.position(name) < end:
                    for each in await consumer.poll(100):
                        record = (each.key, each.value, each.timestamp, tuple(each.headers))
                        found[each.partition].append(record)
        return found

    found: dict[int, list[tuple[Any, ...]]] = on_cluster(bootstrap, work)
    return found


def own(bootstrap: str, topic: str) -> dict[str, str | None]:
    found = on_cluster(bootstrap, lambda cluster: Admin(cluster).describe_configs(topic))
    return {each.name: each.value for each in found if each.source == "topic"}


def set_configs(bootstrap: str, topic: str, *gone: str, **values: str) -> None:
    named = {key.replace("_", "."): value for key, value in values.items()}

    def work(cluster: Client) -> Any:
        return Admin(cluster).alter_configs(topic, values=named, delete=gone)

    on_cluster(bootstrap, work)


def commit(bootstrap: str, group: str, offsets: dict[Partition, int]) -> None:
    async def work(cluster: Client) -> None:
        admin = GroupAdmin(cluster)
        before = await admin.committed(group)
        expected = {name: before[name].offset if name in before else -1 for name in offsets}
        named = {name: OffsetAndMetadata(offset, "note") for name, offset in offsets.items()}
        assert await admin.commit(group, named, expected) == {}

    on_cluster(bootstrap, work)


def committed(bootstrap: str, group: str) -> dict[Partition, int]:
    found = on_cluster(bootstrap, lambda cluster: GroupAdmin(cluster).committed(group))
    return {name: each.offset for name, each in found.items()}


@pytest.mark.parametrize("to_options", [{}, ONCE], ids=["at least once", "exactly once"])
def test_342_topics_settings_and_groups_as_they_come(
    spark: Any, ends: tuple[str, str], tmp_path: Path, to_options: dict[str, str]
) -> None:
    """By name and by pattern, with a prefix; a topic goes and another comes, groups follow."""
    tag = "once" if to_options else "least"
    first, gone, later = f"{tag}-a", f"{tag}-b", f"{tag}-c"
    names = Names((first,), Pattern.read(f"{tag}-[bc]"), "near.")
    source, target = ends
    work = Following(
        spark, source, target, tmp_path / "at", names,
        group=f"lag-{tag}", offsets=True, to_options=to_options,
    )  # fmt: skip
    create_topic(source, first, 2, max_message_bytes=300_000)
    create_topic(source, gone, 1)
    fill(source, first, numbered(200, 2))
    fill(source, gone, numbered(50))
    commit(source, f"readers-{tag}", {(first, 0): 30, (first, 1): 100})
    assert [preview.to_topic for preview in work.mirror().preview()] == [
        f"near.{first}", f"near.{gone}"]  # fmt: skip
    cycle = work.copy()
    assert (cycle.rows, cycle.offsets) == (250, 2)
    work.assert_alike(first)
    work.assert_alike(gone)
    assert committed(source, f"lag-{tag}") == {(first, 0): 100, (first, 1): 100, (gone, 0): 50}
    markers = bool(to_options)
    copy = f"near.{first}"
    assert committed(target, f"readers-{tag}") == {(copy, 0): 30, (copy, 1): 100 + markers}

    # A setting of the copy's own stays, what changes at the source is changed.
    set_configs(target, copy, segment_ms="7200000")
    set_configs(source, first, "max.message.bytes", segment_bytes="20000000")
    delete_topic(source, gone)
    create_topic(source, later, 1)
    fill(source, later, numbered(40))
    delete_before(source, later, 0, 10)
    fill(source, first, numbered(60, 2, first=200))
    commit(source, f"readers-{tag}", {(first, 0): 120})
    cycle = work.copy()
    assert (cycle.rows, cycle.offsets) == (60 + 30, 1)
    work.assert_alike(first)
    work.assert_alike(later)
    assert own(target, copy) == {
        "retention.ms": "-1",
        "segment.ms": "7200000",
        "segment.bytes": "20000000",
    }
    assert committed(target, f"readers-{tag}")[copy, 0] == 120 + markers
    assert work.mirror().ends()[gone, 0] == 50
    assert committed(source, f"lag-{tag}")[later, 0] == 40


@contextmanager
def killed_on_the_way(cluster: Cluster, topic: str, arrived: Callable[[], bool]) -> Iterator[None]:
    """Kills the leader of the topic's first partition when something has arrived, and starts it."""
    failure: list[BaseException] = []

    def kill() -> None:
        try:
            wait_until(arrived, "something is copied", timeout_s=200)
            victim = cluster.leader_of(topic)
            cluster.kill(victim)
            wait_until(lambda: cluster.leader_of(topic) != victim, "another leader", timeout_s=60)
            cluster.restart(victim)
        except BaseException as error:  # raised behind the block
            failure.append(error)

    helper = threading.Thread(target=kill)
    helper.start()
    yield
    helper.join()
    if failure:
        raise failure[0]


def test_342_two_sources_into_one_target_whose_leaders_are_killed(
    spark: Any, tmp_path: Path
) -> None:
    rows = 3000
    with (
        Cluster(3) as east,
        Cluster(3) as west,
        Broker(dir=tmp_path / "far") as far,
    ):
        mirrors = []
        for name, cluster in (("east", east), ("west", west)):
            create_topic(cluster.bootstrap, "orders", 2)
            fill(cluster.bootstrap, "orders", numbered(rows, 2))
            mirrors.append(
                Following(
                    spark,
                    cluster.bootstrap,
                    far.bootstrap,
                    tmp_path / name,
                    Names(("orders",), prefix=f"{name}."),
                    max_records=rows // 5,
                    to_options=ONCE,
                )
            )
        for work, cluster in zip(mirrors, (east, west), strict=True):
            copy = work.names.copy_of("orders")

            def arrived(copy: str = copy) -> bool:
                """Whether the first batch is there."""
                with contextlib.suppress(KafkaError):
                    return end_of(far.bootstrap, copy, 0) > 100
                return False

            with killed_on_the_way(cluster, "orders", arrived):
                assert work.copy().rows == rows
            fill(cluster.bootstrap, "orders", numbered(100, 2, first=rows))
        for work in mirrors:
            assert work.copy().rows == 100
            work.assert_alike("orders")

"""`kraftpy pipeline mirror` with several topics: as they come, from two clusters, with groups."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from kraftpy.spark.positions import Pattern
from kraftpy.testing import Broker, Cluster
from tests.spark.topics import (
    create_topic,
    delete_before,
    delete_topic,
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


def copy_in_a_thread(work: Following) -> Cycle:
    """Copies what there is.

    Spark looks for sinks in the session that is the thread's, which this has it be.
    """
    work.spark.createDataFrame([(0,)], "n int")
    return work.copy()


def copied(work: Following) -> int:
    """How many records are in batches that are done."""
    return sum(work.mirror().ends().values())


@pytest.mark.parametrize("to_options", [{}, ONCE], ids=["at least once", "exactly once"])
def test_342_a_topic_that_goes_in_the_middle_keeps_no_other_from_being_copied(
    spark: Any,
    ends: tuple[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    to_options: dict[str, str],
) -> None:
    """Spark repeats the batch that is planned with it, whatever is assigned by then."""
    tag = "once" if to_options else "least"
    stays, goes = f"going-{tag}-a", f"going-{tag}-b"
    source, target = ends
    for topic in (stays, goes):
        create_topic(source, topic, 1)
        fill(source, topic, numbered(2000))
    names = Names((), Pattern.read(f"going-{tag}-."))
    work = Following(
        spark, source, target, tmp_path / "at", names, max_records=400, to_options=to_options
    )
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(copy_in_a_thread, work)
        wait_until(lambda: copy.done() or copied(work), "a batch", timeout_s=100)
        delete_topic(source, goes)
        copy.result()
    if to_options:
        work.assert_alike(stays)
    else:  # the batch that has failed may be there twice
        (records,) = log_of(target, stays).values()
        assert [*dict.fromkeys(records)] == log_of(source, stays)[0]
    assert caplog.text.count(f"topic {goes} was deleted while it was copied") == 1
    assert 0 < work.mirror().ends()[goes, 0] < 2000


def test_342_a_topic_that_goes_behind_the_last_batch_ends_nothing(
    spark: Any, ends: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = ends
    stays, goes = "late-a", "late-b"
    for topic in (stays, goes):
        create_topic(source, topic, 1)
        fill(source, topic, numbered(20))
    work = Following(spark, source, target, tmp_path, Names((), Pattern.read("late-.")))
    copy = Mirror._copy

    def copy_and_delete(self: Mirror, wanted: dict[str, list[int]]) -> dict[int, int]:
        rows = copy(self, wanted)
        if goes in wanted:
            delete_topic(source, goes)
        return rows

    monkeypatch.setattr(Mirror, "_copy", copy_and_delete)
    work.copy()
    work.assert_alike(stays)
    assert work.mirror().ends() == {(stays, 0): 20, (goes, 0): 20}


def any_ended(copies: Sequence[Future[Cycle]]) -> bool:
    """Raises what a copy has failed with."""
    return any(each.result() for each in copies if each.done())


def kill_leaders_on_the_way(
    sources: Sequence[tuple[Following, Cluster]], copies: Sequence[Future[Cycle]]
) -> list[int]:
    """Kills a leader of each once all have copied something, and starts them again.

    Returns how much each had copied when all of these were dead.
    """
    wait_until(
        lambda: any_ended(copies) or all(copied(work) for work, _ in sources),
        "each has copied a batch",
        timeout_s=100,
    )
    victims = [cluster.leader_of("orders") for _, cluster in sources]
    for (_, cluster), victim in zip(sources, victims, strict=True):
        cluster.kill(victim)
    done = [copied(work) for work, _ in sources]
    for (_, cluster), victim in zip(sources, victims, strict=True):
        wait_until(
            lambda cluster=cluster, victim=victim: (
                cluster.leader_of("orders") not in (None, victim)
            ),
            "another leader",
            timeout_s=60,
        )
        cluster.restart(victim)
    return done


def test_342_two_sources_into_one_target_whose_leaders_are_killed(
    spark: Any, tmp_path: Path
) -> None:
    """Both at once: each leader dies while either mirror has more to copy than its batch."""
    rows, batch = 3000, 200
    with (
        Cluster(3) as east,
        Cluster(3) as west,
        Broker(dir=tmp_path / "far") as far,
        ThreadPoolExecutor(2) as pool,
    ):
        sources = []
        for name, cluster in (("east", east), ("west", west)):
            create_topic(cluster.bootstrap, "orders", 2)
            fill(cluster.bootstrap, "orders", numbered(rows, 2))
            work = Following(
                spark,
                cluster.bootstrap,
                far.bootstrap,
                tmp_path / name,
                Names(("orders",), prefix=f"{name}."),
                max_records=batch,
                to_options=ONCE,
            )
            sources.append((work, cluster))
        copies = []
        for work, _ in sources:
            copies.append(pool.submit(copy_in_a_thread, work))
            # One after the other: Spark waits ten seconds for a Python process, and no longer.
            begun = tmp_path / work.names.prefix[:-1] / "spark" / "offsets" / "0"
            wait_until(
                lambda begun=begun: any_ended(copies) or begun.exists(), "a batch", timeout_s=100
            )
        done = kill_leaders_on_the_way(sources, copies)
        # The batch that was under way may have been read; what is behind it was not.
        assert all(0 < each < rows - batch for each in done), done
        assert [each.result().rows for each in copies] == [rows, rows]
        for work, cluster in sources:
            fill(cluster.bootstrap, "orders", numbered(100, 2, first=rows))
            assert work.copy().rows == 100
            work.assert_alike("orders")

"""`kraftpy group` on members that share a partition: whose a key is, and what is done of it."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import AsyncExitStack
from typing import Any

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.group import GroupTimes
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.producer import Producer
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, key_hash
from kraftpy.testing import Broker

from .commands import TIMEOUT_S, failure, output

RECORDS = 60
TIMES = GroupTimes(session_timeout_ms=6000, heartbeat_interval_ms=100)


async def test_members_that_share_a_partition(kraftpy: Broker) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    name = f"g-{topic}"

    async def group(*args: str) -> Any:
        return await asyncio.to_thread(output, "group", *args, bootstrap=kraftpy.bootstrap)

    async def fail(*args: str) -> str:
        return await asyncio.to_thread(failure, "group", *args, code=1, bootstrap=kraftpy.bootstrap)

    async with Cluster(kraftpy.bootstrap) as cluster, AsyncExitStack() as stack:
        admin = GroupAdmin(cluster)
        await admin.create_topic(topic, partitions=1, configs={"accept.range.fetch": "true"})
        async with Producer(cluster) as producer:
            for number in range(RECORDS):
                await producer.send(topic, b"x", key=b"%d" % number, partition=0)
        consumers = []
        for host in ("north", "south"):
            consumer = Consumer(
                cluster,
                group_id=name,
                times=TIMES,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                explicit_done=True,
                assignors=["kraftpy-cooperative-sticky"],
                share_host=host,
            )
            await stack.enter_async_context(consumer)
            consumer.subscribe([topic])
            consumers.append(consumer)
        records: list[list[ConsumerRecord]] = [[], []]

        def is_settled() -> bool:
            return len({consumer.generation.id for consumer in consumers}) == 1

        def is_done(index: int) -> bool:
            slices = consumers[index].shares.get((topic, 0)) or []
            mine = [n for n in range(RECORDS) if _in(slices, n)]
            return bool(slices) and {r.offset for r in records[index]} >= set(mine)

        async with asyncio.timeout(TIMEOUT_S):
            while not (is_settled() and is_done(0) and is_done(1)):
                for index, consumer in enumerate(consumers):
                    records[index] += await consumer.poll(20)
        shares = [consumer.shares[topic, 0] for consumer in consumers]
        first, second = (
            [record for record in found if _in(slices, record.offset)]
            for found, slices in zip(records, shares, strict=True)
        )
        # All but the first one's oldest record, of which only what lies above is done.
        for index, found in enumerate((first[1:], second)):
            for record in found:
                consumers[index].done(record)
            await consumers[index].commit()
        members = {
            each.sharing.share_host: each
            for each in (await admin.describe_group(name)).members
            if each.sharing
        }
        stable = (await admin.committed(name))[topic, 0].offset
        assert stable == first[0].offset

        # Who has what.
        (described,) = json.loads(await group("describe", name, "--keys", "-o", "json"))
        rows = described["shares"]
        assert [(row["first_slot"], row["last_slot"]) for row in rows] == [
            (0, SLOTS // 2 - 1),
            (SLOTS // 2, SLOTS - 1),
        ]
        assert {row["host"]: row["next"] for row in rows} == {"north": stable, "south": RECORDS}
        assert {row["host"]: row["lag"] for row in rows} == {"north": RECORDS - stable, "south": 0}
        assert {row["host"]: row["member"] for row in rows} == {
            host: member.id for host, member in members.items()
        }
        (partition,) = described["partitions"]
        assert partition["lag"] == RECORDS - stable
        text = await group("describe", name, "--keys")
        assert "2 members (--keys)" in text
        assert f"0-{SLOTS // 2 - 1}      50.0%" in text

        # What is done of it.
        found = json.loads(await group("ranges", name, "-o", "json"))
        assert found
        assert all(row["offset"] == stable for row in found)
        above = {row["last"] for row in found}
        assert max(above) == RECORDS - 1
        header, *lines = (line.split() for line in (await group("ranges", name)).splitlines())
        assert header == ["TOPIC", "PARTITION", "OFFSET", "SLOTS", "FIRST", "LAST"]
        assert len(lines) == len(found)

        # Whose a key is.
        for record, host in ((first[0], "north"), (second[0], "south")):
            assert record.key is not None
            args = ("owner", name, topic, record.key.decode())
            answer = json.loads(await group(*args, "-o", "json"))
            assert (answer["partition"], answer["host"]) == (0, host)
            assert answer["hash"] == key_hash(record.key, 0)
            assert members[host].id in await group(*args)

        # What there is not.
        assert "kraftpy group list" in await fail("owner", "no-" + name, topic, "k")
        assert "kraftpy topic create" in await fail("owner", name, "no-" + topic, "k")
        assert "no partition 1, only 0" in await fail("owner", name, topic, "k", "-p", "1")
        assert "kraftpy group list" in await fail("ranges", "no-" + name)
    gone = await fail("owner", name, topic, "k")
    assert f"kraftpy group describe {name} --keys" in gone


def _in(slices: list[tuple[int, int]], number: int) -> bool:
    hash_ = key_hash(b"%d" % number, number)
    return any(low <= hash_ <= high for low, high in slices or [(0, HASH_MAX)])

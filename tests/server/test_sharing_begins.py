"""Members that were there before their cluster served sharing, and when it doesn't any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.coordinator import Coordinator
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE
from kraftpy.testing import Broker
from tests.server.test_sharing import TIMEOUT_S, NewTopic, Reader, group_on, send

UPGRADE, SAFE_DOWNGRADE = 1, 2


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One whose features change."""
    with Broker(group_initial_rebalance_delay_ms=0) as started:
        yield started


async def serve(cluster: Cluster, level: int) -> None:
    kinds = messages.UpdateFeaturesRequest
    how = UPGRADE if level else SAFE_DOWNGRADE
    update = kinds.FeatureUpdateKey(COOPERATIVE_FEATURE, level, False, how)
    answer = await cluster.request(kinds(10_000, [update]))
    assert answer.error_code == ErrorCode.NONE, answer.error_message


@pytest.mark.parametrize(
    ("assignor", "explicit"), [("range", False), ("kraftpy-cooperative-sticky", True)]
)
async def test_members_share_while_their_cluster_serves_it(
    broker: Broker, new_topic: NewTopic, assignor: str, explicit: bool
) -> None:
    topic = new_topic(accept_range_fetch="true")
    async with group_on(broker, topic) as (group, cluster):
        await serve(cluster, 0)
        readers = [
            await group.start(assignors=[assignor], explicit_done=explicit, metadata_max_age_ms=200)
            for _ in range(2)
        ]

        whole = partial(is_whole, topic, readers)

        async def is_done(count: int) -> bool:
            for reader in readers:
                do_all(reader)
            committed = await readers[0].consumer.committed([(topic, 0)])
            return committed.get((topic, 0)) == count

        await group.until(whole)
        sent = 0
        for level in (0, 1, 0, 1):
            await serve(cluster, level)
            if level:
                await group.until_shared(*readers)
            await send(cluster, topic, range(sent, sent + 100))
            sent += 100
            if not level:
                await group.until(whole)
            await group.until(partial(is_done, sent))
        group.check(sent, once=False)


@pytest.mark.parametrize("early", [0, 1])
async def test_one_generation_may_have_seen_different_levels(
    broker: Broker, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, early: int
) -> None:
    """Who joined just before sharing was served said nothing of it, whoever leads; both look."""
    topic = new_topic(accept_range_fetch="true")
    async with group_on(broker, topic) as (group, cluster):
        await serve(cluster, 0)
        readers = [await group.start(metadata_max_age_ms=1000) for _ in range(2)]
        await group.until(lambda: is_whole(topic, readers))
        served = asyncio.Event()
        ask = Coordinator.ask_features
        first = readers[early].consumer

        async def ask_around(coordinator: Coordinator) -> int:
            if coordinator is not first._coordinator:
                await served.wait()
                return await ask(coordinator)
            level = await ask(coordinator)
            if not served.is_set():
                await serve(cluster, 1)
                served.set()
            return level

        monkeypatch.setattr(Coordinator, "ask_features", ask_around)
        assert first._member is not None
        first._member.needs_join = True
        await group.until_shared(*readers)


def is_whole(topic: str, readers: list[Reader]) -> bool:
    held = [reader.consumer.shares for reader in readers]
    return sorted(held, key=len) == [{}, {(topic, 0): []}]


def do_all(reader: Reader) -> None:
    """With `explicit_done`, all that it has been handed is done."""
    if reader.consumer._explicit_done:
        for record in reader.records:
            reader.consumer.done(record)


async def test_what_is_done_out_of_order_is_committed_where_claims_are_refused() -> None:
    """Up to the first record that isn't done, and at once: the group is told when it is joined."""
    with Broker(accept_individual_commit=False, group_initial_rebalance_delay_ms=0) as broker:
        async with Cluster(broker.bootstrap) as cluster:
            await Admin(cluster).create_topic("t", partitions=1, replication_factor=1)
            await send(cluster, "t", range(20))
            async with Consumer(
                cluster,
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                explicit_done=True,
            ) as consumer:
                consumer.subscribe(["t"])
                found: list[ConsumerRecord] = []
                async with asyncio.timeout(TIMEOUT_S):
                    while len(found) < 20:
                        found += await consumer.poll(100)
                for record in found[:3] + found[4:]:
                    consumer.done(record)
                await consumer.commit()
                assert await consumer.committed([("t", 0)]) == {("t", 0): 3}
                consumer.done(found[3])
                await consumer.commit()
                assert await consumer.committed([("t", 0)]) == {("t", 0): 20}

"""A consumer group, a share group and a cooperative group read one topic, each all of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer as SharingConsumer
from kraftpy.testing import Broker
from tests.waiting import until

RECORDS = 200
TOPIC = "read-by-all"
KEYS = 12
GROUP_RESOURCE = 32
TIMEOUT_S = 30.0


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, 1, 1, config={"accept.range.fetch": "true"})
    admin.create_topics([topic])[TOPIC].result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number).encode(), key=f"k{number % KEYS}".encode())
    assert producer.flush(TIMEOUT_S) == 0


async def test_three_kinds_of_groups_read_one_topic_side_by_side() -> None:
    whole, leased, shared = Counter[bytes](), Counter[bytes](), Counter[bytes]()
    counts = whole, leased, shared
    with Broker() as broker:
        await asyncio.to_thread(fill, broker.bootstrap)
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(Cluster(broker.bootstrap))
            values = {"share.auto.offset.reset": "earliest"}
            await Admin(cluster).alter_configs("queue", values=values, resource_type=GROUP_RESOURCE)

            def is_complete() -> bool:
                return all(len(each) == RECORDS for each in counts)

            def consume() -> None:
                settings = {"bootstrap.servers": broker.bootstrap, "group.id": "whole"}
                consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
                consumer.subscribe([TOPIC])
                while not is_complete():
                    whole.update(each.value() or b"" for each in consumer.consume(50, 0.1))
                consumer.close()

            def lease() -> None:
                settings = {"bootstrap.servers": broker.bootstrap, "group.id": "queue"}
                explicit = {"share.acknowledgement.mode": "explicit"}
                with ShareConsumer(settings | explicit) as consumer:
                    consumer.subscribe([TOPIC])
                    while not is_complete():
                        got = list(consumer.poll(0.1))
                        for each in got:
                            consumer.acknowledge(each)
                        consumer.commit_sync(TIMEOUT_S)  # what isn't kept is the other one's
                        leased.update(each.value() or b"" for each in got)

            async def share() -> None:
                sharing = SharingConsumer(cluster, group_id="sharing", auto_offset_reset="earliest")
                stack.push_async_callback(sharing.close)
                sharing.subscribe([TOPIC])
                while not is_complete():
                    shared.update(each.value or b"" for each in await sharing.poll(100))

            reading = [
                *(asyncio.create_task(asyncio.to_thread(each)) for each in (consume, lease, lease)),
                *(asyncio.create_task(share()) for _ in range(2)),
            ]
            try:
                await until(is_complete, TIMEOUT_S)
            finally:
                for each in counts:  # so that whoever reads stops
                    each.update({str(number).encode(): 0 for number in range(RECORDS)})
                await asyncio.gather(*reading)
    once = dict.fromkeys((str(number).encode() for number in range(RECORDS)), 1)
    assert whole == once
    assert leased == once
    # Who gives slices up when others join may not have said yet that it is done with some.
    assert {each for each, count in shared.items() if count} == set(once)

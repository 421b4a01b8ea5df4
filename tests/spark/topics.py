"""Topics with something in them, written by kraftpy's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.offsets import LATEST, list_offsets
from kraftpy.client.producer import Producer

START_MS = 1_700_000_000_000


def on_cluster(bootstrap: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Cluster(bootstrap) as cluster:
            return await work(cluster)

    return asyncio.run(run())


def create_topic(bootstrap: str, name: str, partitions: int = 1, **settings: object) -> None:
    """Make a topic; `settings` are its configuration, `_` standing for `.`.

    Its records stay: those of START_MS are older than the broker's retention.
    """
    given = {key.replace("_", "."): str(value) for key, value in settings.items()}
    configs = {"retention.ms": "-1", **given}

    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topic(name, partitions=partitions, configs=configs)
        await cluster.topic(name, auto_create=True)  # waits until the broker knows it

    on_cluster(bootstrap, work)


def fill(
    bootstrap: str,
    topic: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    compression: str = "none",
) -> None:
    """Write rows: value, key, partition, headers, timestamp_ms (START_MS + n by default)."""

    async def work(cluster: Cluster) -> None:
        async with Producer(cluster, compression=compression) as producer:
            for number, row in enumerate(rows):
                await producer.send(topic, **{"timestamp_ms": START_MS + number, **row})

    on_cluster(bootstrap, work)


def numbered(count: int, partitions: int = 1, first: int = 0) -> list[dict[str, Any]]:
    """Rows with keys, values, nulls and headers, in turn over the partitions."""
    return [
        {
            "value": None if n % 17 == 3 else b"value %d" % n,
            "key": None if n % 5 == 0 else b"key %d" % n,
            "partition": n % partitions,
            "headers": [("n", b"%d" % n), ("empty", None)][: n % 3],
        }
        for n in range(first, first + count)
    ]


def delete_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Remove the records before an offset, as retention does."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    (done,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    assert done.result(timeout=20).low_watermark == offset


def end_of(bootstrap: str, topic: str, partition: int) -> int:
    """The offset behind a partition's last record."""
    name = (topic, partition)
    found: dict[tuple[str, int], int] = on_cluster(
        bootstrap, lambda cluster: list_offsets(cluster, {name: LATEST})
    )
    return found[name]


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; returns when it is gone."""

    async def work(cluster: Cluster) -> None:
        await Admin(cluster).delete_topic(topic)

    on_cluster(bootstrap, work)

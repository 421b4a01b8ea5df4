"""MirrorMaker 2 as it is, in its dedicated mode, and how far copies are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import confluent_kafka

from tests.apache_kafka import fetch_connect_jars, java
from tests.processes import Process

JVM = "-Xmx512m -XX:+UseSerialGC"
_OWN_TOPICS = (
    "",
    "checkpoints.topic.",
    "heartbeats.topic.",
    "offset-syncs.topic.",
    "offset.storage.",
    "status.storage.",
    "config.storage.",
)


def write_properties(path: Path, properties: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def ends(asking: confluent_kafka.Consumer, topic: str, count: int, timeout_s: float) -> list[int]:
    """The ends of so many partitions, -1 of a topic that isn't there."""
    wanted = [confluent_kafka.TopicPartition(topic, each) for each in range(count)]
    try:
        return [asking.get_watermark_offsets(each, timeout_s)[1] for each in wanted]
    except confluent_kafka.KafkaException:
        return [-1] * count


def asking_of(bootstrap: str) -> confluent_kafka.Consumer:
    """Who makes no topic by asking for it; to be closed."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ends",
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )


def start(
    folder: Path,
    clusters: Mapping[str, str],
    ways: Iterable[str],
    of_each: Mapping[str, object],
    *,
    tasks: int,
    jvm: str = JVM,
) -> Process:
    """One that mirrors these ways between clusters, named with their addresses.

    A way is `one->two`; each has the settings `of_each`.
    """
    properties: dict[str, object] = {"clusters": ", ".join(clusters), "tasks.max": tasks}
    for name, address in clusters.items():
        properties[f"{name}.bootstrap.servers"] = address
    for way in ways:
        properties[f"{way}.enabled"] = "true"
        properties |= {f"{way}.{key}": value for key, value in of_each.items()}
    properties |= {f"{kind}replication.factor": 1 for kind in _OWN_TOPICS}
    config = write_properties(folder / "mm2.properties", properties)
    name = "org.apache.kafka.connect.mirror.MirrorMaker"
    command = java(fetch_connect_jars(), name, str(config), jvm=jvm)
    return Process(command, folder / "mirror.log")

"""MirrorMaker 2 as it is, in its dedicated mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

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

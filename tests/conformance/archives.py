"""Classes of Apache Kafka as a JVM has loaded them once, for those that come later to map.

A tool or a broker then starts with a third of the CPU time. It takes ten seconds, once for a
checkout; without it all is as it was, but slower.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.apache_kafka import (
    TEST_JVM,
    TOOL_JVM,
    ApacheKafka,
    archive_of,
    fetch_broker_jars,
    fetch_jars,
    java,
)
from tests.conformance.foreign import SOURCES
from tests.conformance.tool_runner import ToolRunner
from tests.processes import running

_TOPIC = "archived"
_COMMANDS = (
    ("kafka-topics", "--create", "--topic", _TOPIC),
    ("kafka-topics", "--describe"),
    ("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", _TOPIC),
    ("kafka-get-offsets", "--topic", _TOPIC),
    ("kafka-features", "describe"),
    ("kafka-consumer-groups", "--describe", "--all-groups"),
    ("kafka-transactions", "list"),
    ("kafka-producer-perf-test", "--topic", _TOPIC, "--num-records", "100", "--record-size", "100",
     "--throughput", "-1"),
    ("kafka-consumer-perf-test", "--topic", _TOPIC, "--num-records", "100"),
)  # fmt: skip


def make_archives() -> None:
    """Start a broker and run tools, and keep what they load, unless that is there."""
    archives = [archive_of(jars) for jars in (fetch_broker_jars(), fetch_jars())]
    if all(archive.exists() for archive in archives):
        return
    unfinished = [archive.with_suffix(".unfinished") for archive in archives]
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as folder:
        kafka = ApacheKafka(Path(folder))
        kafka.jvm = _archiving(TEST_JVM, unfinished[0])
        # From its source: there may be no folder among what is archived.
        source = str(SOURCES / "java" / "ToolRunner.java")
        command = java(fetch_jars(), source, jvm=_archiving(TOOL_JVM, unfinished[1]))
        with running(kafka), ToolRunner(Path(folder, "log"), command) as tools:
            for name, *arguments in _COMMANDS:
                ended = tools.run(name, "--bootstrap-server", kafka.bootstrap, *arguments)
                assert ended.code == 0, ended
            tools.end()
    for made, archive in zip(unfinished, archives, strict=True):
        made.replace(archive)


def _archiving(jvm: str, archive: Path) -> str:
    return f"{jvm} -XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off"

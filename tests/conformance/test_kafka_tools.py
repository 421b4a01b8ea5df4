"""Apache Kafka's own command line tools, their output checked.

A JVM takes more than a second to start, so each test makes few calls and looks at much.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apache_kafka import run_tool
from tests.clients.driver import T0_MS, Driver, Message


@pytest.fixture
def tool(bootstrap: str) -> Callable[..., str]:
    def run(name: str, *args: str, stdin: str = "") -> str:
        return run_tool(name, "--bootstrap-server", bootstrap, *args, stdin=stdin)

    return run


def numbered(count: int) -> list[Message]:
    return [Message(b"value-%d" % i, b"key-%d" % i, timestamp_ms=T0_MS + i) for i in range(count)]


def test_kafka_topics(tool: Callable[..., str], topic: str) -> None:
    create = ("--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=7200000")
    assert f"Created topic {topic}." in tool("kafka-topics", *create)
    assert topic in tool("kafka-topics", "--list").split()
    described = tool("kafka-topics", "--describe", "--topic", topic)
    head, *partitions = described.strip().splitlines()
    assert "PartitionCount: 3" in head
    assert "ReplicationFactor: 1" in head
    assert "retention.ms=7200000" in head
    assert re.search(r"TopicId: [\w-]{22}", head)
    assert [re.search(r"Partition: (\d)", line)[1] for line in partitions] == ["0", "1", "2"]  # type: ignore[index]
    assert all(re.search(r"Leader: (\d+)\s+Replicas: \1\s+Isr: \1", line) for line in partitions)
    with pytest.raises(RuntimeError, match="exists"):
        tool("kafka-topics", *create)
    tool("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tool("kafka-topics", "--describe", "--topic", topic)
    tool("kafka-topics", "--delete", "--topic", topic)
    assert topic not in tool("kafka-topics", "--list").split()


def test_kafka_configs(tool: Callable[..., str], new_topic: Callable[..., str]) -> None:
    entity = ("--entity-type", "topics", "--entity-name", new_topic())
    add = ("--alter", "--add-config", "retention.ms=1234567,cleanup.policy=[compact,delete]")
    assert "Completed updating config" in tool("kafka-configs", *entity, *add)
    described = tool("kafka-configs", *entity, "--describe")
    assert "retention.ms=1234567 sensitive=false" in described
    assert "cleanup.policy=compact,delete sensitive=false" in described
    tool("kafka-configs", *entity, "--alter", "--delete-config", "retention.ms")
    everything = tool("kafka-configs", *entity, "--describe", "--all")
    assert "retention.ms=604800000 sensitive=false" in everything
    with pytest.raises(RuntimeError, match=r"(?i)invalid"):
        tool("kafka-configs", *entity, "--alter", "--add-config", "retention.ms=soon")


def test_kafka_configs_of_brokers(tool: Callable[..., str]) -> None:
    entity = ("--entity-type", "brokers", "--entity-default")
    tool("kafka-configs", *entity, "--alter", "--add-config", "log.index.interval.bytes=8192")
    assert "log.index.interval.bytes=8192" in tool("kafka-configs", *entity, "--describe")
    tool("kafka-configs", *entity, "--alter", "--delete-config", "log.index.interval.bytes")
    assert "log.index.interval.bytes=8192" not in tool("kafka-configs", *entity, "--describe")


@pytest.mark.parametrize(
    ("kind", "name", "setting", "refused"),
    [
        (
            "groups",
            "some-group",
            "consumer.session.timeout.ms=50000",
            "consumer.session.timeout.ms=44999",
        ),
        ("client-metrics", "some-clients", "interval.ms=1000", "interval.ms=99"),
        ("broker-loggers", "1", "root=WARN", "root=LOUD"),
    ],
)
def test_kafka_configs_of_others(
    tool: Callable[..., str], kind: str, name: str, setting: str, refused: str
) -> None:
    entity = ("--entity-type", kind, "--entity-name", name)
    assert "Completed updating" in tool(
        "kafka-configs", *entity, "--alter", "--add-config", setting
    )
    assert f"{setting} sensitive=false" in tool("kafka-configs", *entity, "--describe")
    with pytest.raises(RuntimeError, match=r"(?i)invalid"):
        tool("kafka-configs", *entity, "--alter", "--add-config", refused)
    key = setting.partition("=")[0]
    if kind == "broker-loggers":
        key = "root"
        with pytest.raises(RuntimeError, match="root logger is not allowed"):
            tool("kafka-configs", *entity, "--alter", "--delete-config", key)
        tool("kafka-configs", *entity, "--alter", "--add-config", "root=INFO")
        return
    # Without a name the tool lists what there is.
    assert setting in tool("kafka-configs", "--entity-type", kind, "--describe")
    tool("kafka-configs", *entity, "--alter", "--delete-config", key)
    assert setting not in tool("kafka-configs", *entity, "--describe")


def test_console_producer_and_consumer(
    tool: Callable[..., str], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    lines = [f"key-{i}\tvalue-{i}" for i in range(50)]
    produce = ("--topic", topic, "--reader-property", "parse.key=true", "--compression-codec=zstd")
    tool("kafka-console-producer", *produce, stdin="\n".join(lines) + "\n")
    show = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    read = ("--topic", topic, "--from-beginning", "--max-messages", "50", "--timeout-ms", "30000")
    out = tool("kafka-console-consumer", *read, *show, "--group", f"g-{topic}")
    assert out.splitlines() == [f"Offset:{i}\t{line}" for i, line in enumerate(lines)]
    tail = ("--topic", topic, "--partition", "0", "--offset", "45", "--max-messages", "5")
    out = tool("kafka-console-consumer", *tail, "--timeout-ms", "30000")
    assert out.splitlines() == [f"value-{i}" for i in range(45, 50)]


def test_perf_tools(
    tool: Callable[..., str], new_topic: Callable[..., str], reference: Driver
) -> None:
    topic = new_topic()
    load = ("--topic", topic, "--num-records", "20000", "--record-size", "200")
    out = tool("kafka-producer-perf-test", *load, "--throughput", "-1")
    assert re.search(r"^20000 records sent, \d+\.\d+ records/sec", out, re.MULTILINE)
    assert reference.watermarks(topic, 0) == (0, 20000)
    read = ("--topic", topic, "--num-records", "20000", "--timeout", "30000")
    header, row = tool("kafka-consumer-perf-test", *read).strip().splitlines()[-2:]
    consumed = dict(zip(header.split(", "), row.split(", "), strict=True))
    assert int(consumed["data.consumed.in.nMsg"]) == 20000
    assert float(consumed["data.consumed.in.MB"]) == pytest.approx(20000 * 200 / 2**20, rel=0.01)


def test_kafka_get_offsets(
    tool: Callable[..., str], new_topic: Callable[..., str], reference: Driver
) -> None:
    topic = new_topic(partitions=2)
    reference.produce(topic, numbered(7))
    for time, expected in (("latest", [7, 0]), ("earliest", [0, 0]), (str(T0_MS + 3), [3])):
        out = tool("kafka-get-offsets", "--topic", topic, "--time", time)
        assert out.split() == [f"{topic}:{p}:{offset}" for p, offset in enumerate(expected)]
    for time, expected in (("earliest-local", [0, 0]), ("-4", [0, 0])):
        out = tool("kafka-get-offsets", "--topic", topic, "--time", time)
        assert out.split() == [f"{topic}:{p}:{offset}" for p, offset in enumerate(expected)]
    # Nothing is kept anywhere else, so there is nothing to print.
    assert tool("kafka-get-offsets", "--topic", topic, "--time", "latest-tiered").split() == []
    out = tool("kafka-get-offsets", "--topic", topic, "--time", "max-timestamp")
    assert f"{topic}:0:6" in out.split()


def test_kafka_log_dirs(
    tool: Callable[..., str], new_topic: Callable[..., str], reference: Driver, log_dir: Path
) -> None:
    topic = new_topic(partitions=2)
    reference.produce(topic, numbered(100))
    out = tool("kafka-log-dirs", "--describe", "--topic-list", topic)
    size = sum(f.stat().st_size for f in (log_dir / f"{topic}-0").glob("*.log"))
    assert str(log_dir) in out
    assert f'"partition":"{topic}-0","size":{size},"offsetLag":0' in out
    assert f'"partition":"{topic}-1","size":0' in out


def test_kafka_dump_log(new_topic: Callable[..., str], reference: Driver, log_dir: Path) -> None:
    """Kafka reads our segments, indexes and producer snapshots, and finds them in order."""
    topic = new_topic(segment_bytes=str(1 << 20))
    sent = [Message(b"%04d" % i * 500, b"key-%d" % i, timestamp_ms=T0_MS + i) for i in range(1500)]
    for first in range(0, 1500, 150):
        codec = ("none", "zstd")[first == 300]
        reference.produce(topic, sent[first : first + 150], codec=codec, idempotent=True)
    folder = log_dir / f"{topic}-0"
    segments = sorted(folder.glob("*.log"))
    assert len(segments) >= 2
    files = ",".join(str(path) for path in segments)
    out = run_tool("kafka-dump-log", "--files", files, "--print-data-log", "--skip-record-metadata")
    assert "isvalid: false" not in out
    keys = re.findall(r"key: (key-\d+) payload: (\d{4})", out)
    assert keys == [(f"key-{i}", f"{i:04d}") for i in range(1500)]
    batches = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) .*?isvalid: (\w+)", out)
    assert {valid for *_, valid in batches} == {"true"}
    starts, ends = ([int(batch[i]) for batch in batches] for i in (0, 1))
    assert starts == [0, *(end + 1 for end in ends[:-1])]
    for suffix, entry in (("index", r"position: [1-9]"), ("timeindex", "timestamp: ")):
        indexes = sorted(folder.glob(f"*.{suffix}"))
        # A broker may keep the index of its active segment in memory, or its file too large.
        closed = [path for path in indexes if path.stem != segments[-1].stem]
        assert [path.stem for path in closed] == [path.stem for path in segments[:-1]]
        out = run_tool("kafka-dump-log", "--files", ",".join(map(str, indexes)))
        assert re.search(entry, out)
        assert not re.search("(?i)mismatch|non-|not found|incomplete|exception", out), out
        files = ",".join(str(path) for path in closed)
        out = run_tool("kafka-dump-log", "--index-sanity-check", "--files", files)
        assert out.count("passed sanity check") == len(closed)
    snapshots = sorted(folder.glob("*.snapshot"))
    assert snapshots
    out = run_tool("kafka-dump-log", "--files", ",".join(map(str, snapshots)))
    assert re.search(r"producerId: \d+ producerEpoch: 0 .*lastSequence: \d+", out), out


def test_console_consumer_of_a_consumer_group(
    tool: Callable[..., str], new_topic: Callable[..., str], reference: Driver
) -> None:
    """The coordinator assigns the partitions (KIP-848)."""
    topic = new_topic(partitions=2)
    reference.produce(topic, [Message(b"%d" % i, partition=i % 2) for i in range(20)])
    protocol = ("--command-property", "group.protocol=consumer", "--from-beginning")
    read = ("--max-messages", "20", "--timeout-ms", "30000", "--group", f"g-{topic}")
    out = tool("kafka-console-consumer", "--topic", topic, *protocol, *read)
    assert sorted(map(int, out.split())) == list(range(20))
    assert [reference.committed(topic, index, f"g-{topic}") for index in range(2)] == [10, 10]
    pattern = ("--include", f"{topic[:-1]}.", *protocol, "--group", f"p-{topic}")
    out = tool("kafka-console-consumer", *pattern, "--max-messages", "20", "--timeout-ms", "30000")
    assert sorted(map(int, out.split())) == list(range(20))


def test_kafka_features(tool: Callable[..., str]) -> None:
    """It finds out that there is the consumer group protocol."""
    out = tool("kafka-features", "describe")
    described = re.search(r"Feature: group\.version.*", out)
    assert described is not None
    assert "SupportedMaxVersion: 1" in described[0]
    assert "FinalizedVersionLevel: 1" in described[0]
    # The tool is of a release that doesn't know this level by its name.
    assert re.search(r"Feature: metadata\.version .*FinalizedVersionLevel: UNKNOWN 33\b", out)
    upgrade = ("kafka-features", "upgrade", "--feature")
    assert "upgraded to 33" in tool(*upgrade, "metadata.version=33")
    with pytest.raises(RuntimeError, match=r"Could not upgrade no\.such to 1"):
        tool(*upgrade, "no.such=1")


def test_kafka_features_lowers_and_raises_the_version_of_transactions(
    tool: Callable[..., str],
) -> None:
    def level() -> str:
        found = re.search(
            r"Feature: transaction\.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 2\s+"
            r"FinalizedVersionLevel: (\d)",
            tool("kafka-features", "describe"),
        )
        assert found is not None
        return found[1]

    feature = ("--feature", "transaction.version=1")
    assert level() == "2"
    assert "can be downgraded to 1" in tool("kafka-features", "downgrade", *feature, "--dry-run")
    with pytest.raises(RuntimeError, match=r"Could not upgrade transaction\.version to 1"):
        tool("kafka-features", "upgrade", *feature)
    assert level() == "2"
    assert "was downgraded to 1" in tool("kafka-features", "downgrade", *feature)
    assert level() == "1"
    raising = ("upgrade", "--feature", "transaction.version=2")
    assert "was upgraded to 2" in tool("kafka-features", *raising)
    assert level() == "2"


def test_kafka_acls(tool: Callable[..., str]) -> None:
    with pytest.raises(RuntimeError, match=r"(?i)no authorizer"):
        tool("kafka-acls", "--list")
    add = ("--add", "--allow-principal", "User:a", "--operation", "read", "--topic", "t")
    with pytest.raises(RuntimeError, match=r"(?i)no authorizer"):
        tool("kafka-acls", *add)

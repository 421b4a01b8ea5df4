"""Clients from before Kafka 0.11: message formats 0 and 1, and requests as old as these.

kcat's librdkafka can pass for one of 0.9 (told of a later broker, it asks for versions), sarama for
one of 0.10, and kafka-clients 0.10.2 is one. Apache Kafka has dropped them: it isn't tried.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from kraftpy.testing import Broker
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Driver, Message
from tests.conformance.foreign import old_java_program, said_by
from tests.server.test_metrics import scrape

CODECS = ["none", "gzip", "snappy", "lz4"]
TIMEOUT_S = 60
T0_MS = 1_700_000_000_000
# What sarama and the program in Java write.
TEN = [(T0_MS + number, number) for number in range(10)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap


@pytest.fixture
def reference(bootstrap: str) -> Driver:
    return ConfluentKafka(bootstrap)


def kcat(bootstrap: str, version: str, *args: str, stdin: str = "") -> list[str]:
    old = ("-X", "api.version.request=false", "-X", f"broker.version.fallback={version}")
    done = subprocess.run(
        ["kcat", "-b", bootstrap, *old, *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout.splitlines()


def conversions(broker: Broker, topic: str) -> tuple[float, float]:
    """Records that came in an old format, and that went out in one."""
    found = scrape(broker.config)
    prefix = "kafka_server_brokertopicmetrics_"
    return (
        found[f"{prefix}producemessageconversions_total", topic],
        found[f"{prefix}fetchmessageconversions_total", topic],
    )


@pytest.mark.parametrize(
    ("version", "codec"), [*(("0.8.2.1", codec) for codec in CODECS), ("0.9.0", "gzip")]
)
def test_kcat_as_an_old_client(
    broker: Broker, reference: Driver, new_topic: Callable[..., str], version: str, codec: str
) -> None:
    topic, bootstrap = new_topic(), broker.bootstrap
    lines = [f"key-{i}:value-{i}" for i in range(100)]
    kcat(bootstrap, version, "-P", "-t", topic, "-K:", "-z", codec, stdin="\n".join(lines))
    found = reference.read(topic, 0, 0, 100)
    assert [f"{each.key.decode()}:{each.value.decode()}" for each in found] == lines
    assert {each.timestamp_ms for each in found} == {-1}
    new = [Message(b"%d" % i, b"new", (("h", b"x"),)) for i in range(20)]
    reference.produce(topic, new, codec=codec)
    out = kcat(
        bootstrap, version, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%o %k:%s\n"
    )
    lines += [f"{each.key.decode()}:{each.value.decode()}" for each in new]
    assert out == [f"{offset} {line}" for offset, line in enumerate(lines)]
    came, went = conversions(broker, topic)
    assert came == 100
    assert went >= 120


def test_kcat_as_an_old_member(bootstrap: str, new_topic: Callable[..., str]) -> None:
    version = "0.9.0"
    topic = new_topic(partitions=2)
    for partition in "01":
        kcat(bootstrap, version, "-P", "-t", topic, "-p", partition, stdin="a\nb\nc")
    options = ("-X", "auto.offset.reset=earliest", "-e", "-q", "-f", "%p %o\n")
    out = kcat(bootstrap, version, "-G", f"g-{topic}", *options, topic)
    assert sorted(out) == [f"{p} {o}" for p in range(2) for o in range(3)]
    kcat(bootstrap, version, "-P", "-t", topic, "-p", "1", stdin="d")
    assert kcat(bootstrap, version, "-G", f"g-{topic}", *options, topic) == ["1 3"]


@pytest.mark.parametrize(
    ("version", "codec"),
    [("0.8.2.0", "none"), ("0.8.2.0", "snappy"), *(("0.10.2.0", codec) for codec in CODECS)],
)
def test_sarama_of_an_old_version(
    broker: Broker, reference: Driver, new_topic: Callable[..., str], version: str, codec: str
) -> None:
    topic = new_topic(retention_ms="-1")
    said = said_by("sarama", broker.bootstrap, version, topic, codec, timeout_s=TIMEOUT_S)
    has_times = version == "0.10.2.0"
    assert said["Offsets"] == list(range(10))
    assert said["Ends"] == [0, 10]
    found = [(each["Offset"], each["Key"], each["Value"]) for each in said["Read"]]
    assert found == [(number, "key", chr(97 + number)) for number in range(10)]
    stored = reference.read(topic, 0, 0, 10)
    assert [each.value for each in stored] == [b"%c" % (97 + number) for number in range(10)]
    if has_times:
        assert [each["Timestamp"] for each in said["Read"]] == [time_ms for time_ms, _ in TEN]
        assert [each.timestamp_ms for each in stored] == [time_ms for time_ms, _ in TEN]
        assert (said["Created"], said["Deleted"]) == ("done", "done")
    assert said["Committed"] == 7
    assert conversions(broker, topic) == (10, 10)


@pytest.mark.parametrize("codec", CODECS)
def test_kafkas_own_client_of_0_10_2(
    broker: Broker, reference: Driver, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(retention_ms="-1")
    new = [Message(b"%d" % i, b"new", (("h", b"x"),), T0_MS) for i in range(5)]
    reference.produce(topic, new, codec=codec)
    command = [*old_java_program("OldClient"), broker.bootstrap, topic, codec, "15"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True, text=True)
    assert done.stdout.splitlines() == [
        *(f"written {number + 5} {time_ms}" for time_ms, number in TEN),
        *(f"read {number} {T0_MS} CreateTime new {number}" for number in range(5)),
        *(f"read {n + 5} {time_ms} CreateTime key value {n}" for time_ms, n in TEN),
        "committed 15",
        "found 10",
    ]
    assert conversions(broker, topic) == (10, 15)

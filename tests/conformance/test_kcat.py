"""kcat, as Debian packages it: librdkafka of several years ago."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.driver import T0_MS, Driver, Message

TEN_MIB = 10 * 1024 * 1024


@pytest.fixture
def kcat(bootstrap: str) -> Callable[..., str]:
    def run(*args: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            ["kcat", "-b", bootstrap, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert bool(done.returncode) == fails, (args, done.stdout, done.stderr)
        return done.stderr if fails else done.stdout

    return run


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(
    kcat: Callable[..., str], new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic()
    lines = [f"key-{i}:value-{i}" for i in range(100)]
    kcat("-P", "-t", topic, "-K:", "-z", codec, "-H", "trace=7", stdin="\n".join(lines))
    out = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert out.splitlines() == [f"{i} {line} trace=7" for i, line in enumerate(lines)]


def test_consume_from_an_offset_and_a_timestamp(
    kcat: Callable[..., str], reference: Driver, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    reference.produce(topic, [Message(b"%d" % i, timestamp_ms=T0_MS + i) for i in range(30)])
    for start, first in (("12", 12), ("-4", 26), (f"s@{T0_MS + 9}", 9)):
        out = kcat("-C", "-t", topic, "-o", start, "-e", "-q", "-f", "%s\n")
        assert [int(line) for line in out.split()] == list(range(first, 30))
    assert f"offset {9}" in kcat("-Q", "-t", f"{topic}:0:{T0_MS + 9}")


def test_subscribe(kcat: Callable[..., str], new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    for partition in "01":
        kcat("-P", "-t", topic, "-p", partition, stdin="a\nb\nc")
    options = ("-X", "auto.offset.reset=earliest", "-e", "-q", "-f", "%p %o\n")
    out = kcat("-G", f"g-{topic}", *options, topic)
    assert sorted(out.splitlines()) == [f"{p} {o}" for p in range(2) for o in range(3)]
    kcat("-P", "-t", topic, "-p", "1", stdin="d")
    assert kcat("-G", f"g-{topic}", *options, topic).splitlines() == ["1 3"]


def test_metadata(kcat: Callable[..., str], bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    metadata = json.loads(kcat("-L", "-J", "-t", topic))
    (broker,) = metadata["brokers"]
    assert broker["name"] == bootstrap
    (described,) = metadata["topics"]
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert {p["leader"] for p in described["partitions"]} == {broker["id"]}
    assert {tuple(r["id"] for r in p["isrs"]) for p in described["partitions"]} == {(broker["id"],)}


def test_10_mib_message(
    kcat: Callable[..., str], new_topic: Callable[..., str], reference: Driver, tmp_path: Path
) -> None:
    topic = new_topic()
    file = tmp_path / "large"
    file.write_bytes(b"x" * TEN_MIB)
    produce = ("-P", "-t", topic, "-p", "0", "-X", f"message.max.bytes={2 * TEN_MIB}", str(file))
    assert "too large" in kcat(*produce, fails=True)
    reference.set_topic_configs(topic, {"max.message.bytes": str(TEN_MIB + 1024)})
    kcat(*produce)
    out = kcat("-C", "-t", topic, "-o", "0", "-c", "1", "-q", "-f", "%S")
    assert out == str(TEN_MIB)

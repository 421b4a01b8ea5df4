"""`kraftpy topic`, and what every command does without a broker or with wrong arguments."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable

import pytest

from kraftpy.testing import Broker

from .commands import TIMEOUT_S, failure, output, run_command


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(kraftpy: Broker) -> Callable[..., str]:
    def run(*args: str) -> str:
        return output("topic", *args, bootstrap=kraftpy.bootstrap)

    return run


def test_create_describe_alter_delete(topic: Callable[..., str], name: str) -> None:
    assert topic("create", name, "-p", "2", "-c", "retention.ms=1000") == f"created topic {name}\n"
    lines = topic("describe", name).splitlines()
    assert lines[0] == f"{name}: 2 partitions, replication factor 1"
    assert lines[1] == "  retention.ms=1000  (topic)"
    assert lines[2].split() == ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"]
    assert [line.split()[0] for line in lines[3:]] == ["0", "1"]

    topic("alter", name, "-p", "3", "-c", "segment.bytes=1048576", "-d", "retention.ms")
    (described,) = json.loads(topic("describe", name, "-o", "json"))
    assert len(described["partitions"]) == 3
    assert described["partitions"][0]["start_offset"] == 0
    assert described["configs"]["segment.bytes"] == {"value": "1048576", "source": "topic"}
    assert described["configs"]["retention.ms"]["source"] == "default"

    listed = {entry["topic"]: entry for entry in json.loads(topic("list", "-o", "json"))}
    assert listed[name] == {
        "topic": name,
        "partitions": 3,
        "replicas": 1,
        "internal": False,
        "offline": 0,
        "under_replicated": 0,
    }
    assert any(line.split() == [name, "3", "1", "ok"] for line in topic("list").splitlines())

    assert topic("delete", name) == f"deleted topic {name}\n"
    assert name not in topic("list")


def test_errors_name_the_topic_and_what_to_do(kraftpy: Broker, name: str) -> None:
    def fail(*args: str) -> str:
        return failure("topic", *args, code=1, bootstrap=kraftpy.bootstrap)

    for command in (("describe", name), ("delete", name), ("alter", name, "-c", "retention.ms=1")):
        assert f"kraftpy topic create {name}" in fail(*command)
    output("topic", "create", name, bootstrap=kraftpy.bootstrap)
    assert "--if-not-exists" in fail("create", name)
    assert "INVALID_PARTITIONS" in fail("alter", name, "-p", "1")
    assert "INVALID_CONFIG" in fail("alter", name, "-c", "no.such.key=1")
    hint = "Unknown topic config name: retention.mss. Did you mean retention.ms?"
    assert hint in fail("alter", name, "-c", "retention.mss=1")
    assert "INVALID_REPLICATION_FACTOR" in fail("create", name + "-3", "-r", "3")
    assert "INVALID_TOPIC_EXCEPTION" in fail("create", "no/slashes")


def test_several_names_are_all_tried(kraftpy: Broker, name: str) -> None:
    output("topic", "create", name, bootstrap=kraftpy.bootstrap)
    done = run_command(
        "topic", "create", name, name + "-2", "-o", "json", bootstrap=kraftpy.bootstrap
    )
    assert done.returncode == 1
    results = json.loads(done.stdout)
    assert results[0]["error"] == "TOPIC_ALREADY_EXISTS"
    assert results[1] == {"topic": name + "-2", "status": "created"}
    kept = output("topic", "create", name, "--if-not-exists", bootstrap=kraftpy.bootstrap)
    assert kept == f"kept topic {name}\n"


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("topic", "create", "t"), ("produce", "t"), ("consume", "t")]
)
def test_without_a_broker(command: tuple[str, ...]) -> None:
    said = failure(*command, code=3, stdin=b"x\n", bootstrap="127.0.0.1:1")
    assert "127.0.0.1:1: connection refused" in said
    assert "kraftpy dev" in said


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "create"),
        ("topic", "create", "t", "-p", "0"),
        ("topic", "create", "t", "-c", "nonsense"),
        ("topic", "alter", "t"),
        ("consume", "t", "-o", "noon"),
        ("consume", "t", "-o", "start", "-o", "end"),
        ("consume", "t", "-f", "%q"),
        ("consume", "t", "-o", "json", "-f", "%v"),
        ("produce", "t", "-f", "%k%v"),
        ("produce", "t", "-z", "brotli"),
        ("produce", "t", "/no/such/file"),
        ("list",),
        ("topic", "list", "-b", "nonsense:port"),
    ],
)
def test_wrong_usage(command: tuple[str, ...]) -> None:
    assert "Usage" in failure(*command, code=2)


def test_help_documents_every_exit_code() -> None:
    text = output("--help")
    for code in ("0", "1", "2", "3", "4", "130"):
        assert f"\n    {code} " in text


def test_version() -> None:
    assert output("--version").strip()[0].isdigit()


def test_each_name_that_failed_is_said(kraftpy: Broker, name: str) -> None:
    said = failure("topic", "delete", name, f"{name}-2", code=1, bootstrap=kraftpy.bootstrap)
    assert [line.split("'")[1] for line in said.splitlines()] == [name, f"{name}-2"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "t", "-p", "99999999999"),
        ("topic", "create", "t", "-r", "99999"),
        ("topic", "alter", "t", "-p", "99999999999"),
        ("topic", "list", "--timeout", "1e15"),
        ("topic", "list", "--timeout", "inf"),
        ("topic", "list", "--timeout", "nan"),
        ("topic", "create", b"t\xff"),
        ("topic", "create", "t", "-c", b"a=\xff"),
        ("produce", b"t\xff"),
        ("produce", "t", "-H", b"a=\xff"),
        ("consume", b"t\xff"),
        ("dev", "-c", b"a=\xff"),
    ],
    ids=str,
)
def test_what_the_protocol_cannot_carry_is_wrong_usage(arguments: tuple[str | bytes, ...]) -> None:
    assert "Invalid value for" in failure(*map(os.fsdecode, arguments), code=2)


def test_the_clusters_own_topics_are_deleted_only_by_who_means_it(kraftpy: Broker) -> None:
    name = "__consumer_offsets"
    output("topic", "create", "read", bootstrap=kraftpy.bootstrap)
    seek = ("group", "seek", "readers", "--to", "0", "-t", "read")
    output(*seek, bootstrap=kraftpy.bootstrap)
    said = failure("topic", "delete", name, code=1, bootstrap=kraftpy.bootstrap)
    assert f"`kraftpy topic delete --force-internal {name}`" in said
    assert "readers" in output("group", "list", bootstrap=kraftpy.bootstrap)
    forced = output("topic", "delete", "--force-internal", name, bootstrap=kraftpy.bootstrap)
    assert forced == f"deleted topic {name}\n"
    assert "readers" not in output("group", "list", bootstrap=kraftpy.bootstrap)


def test_list_by_pattern_with_size_and_health(kraftpy: Broker, name: str) -> None:
    output("topic", "create", f"{name}-a", f"{name}-b", "-p", "2", bootstrap=kraftpy.bootstrap)
    output("produce", f"{name}-a", stdin=b"x" * 1000, bootstrap=kraftpy.bootstrap)
    listed = ("topic", "list", f"{name}-[ab]", "no such*")
    header, *rows = output(*listed, "--size", bootstrap=kraftpy.bootstrap).splitlines()
    assert header.split() == ["TOPIC", "PARTITIONS", "REPLICAS", "HEALTH", "SIZE", "TOTAL"]
    assert [row.split()[:4] for row in rows] == [[f"{name}-{x}", "2", "1", "ok"] for x in "ab"]
    assert rows[0].split()[4:] == ["1.1", "KB", "1.1", "KB"]
    (first, second) = json.loads(output(*listed, "-s", "-o", "json", bootstrap=kraftpy.bootstrap))
    assert (first["offline"], first["under_replicated"]) == (0, 0)
    assert first["bytes"] == first["bytes_total"] > 1000 > second["bytes"] == 0
    for args, said in (
        ((*listed, "--unhealthy"), b"every topic that matches is healthy\n"),
        (("topic", "list", "--unhealthy"), b"every topic is healthy\n"),
        (("topic", "list", "no such*", "--unhealthy"), b"no such topic\n"),
    ):
        done = run_command(*args, bootstrap=kraftpy.bootstrap)
        assert (done.stdout, done.stderr) == (b"", said)


def test_trim_deletes_the_oldest_records(kraftpy: Broker, name: str) -> None:
    output("topic", "create", name, "-p", "2", bootstrap=kraftpy.bootstrap)
    for partition in ("0", "1"):
        lines = b"".join(b"%d\n" % n for n in range(10))
        output("produce", name, "-p", partition, stdin=lines, bootstrap=kraftpy.bootstrap)

    def trim(*arguments: str) -> list[tuple[int, int, int]]:
        rows = json.loads(output("topic", "trim", name, *arguments, "-o", "json", **where))
        return [(row["partition"], row["from"], row["to"]) for row in rows]

    where = {"bootstrap": kraftpy.bootstrap}
    assert trim("--to", "-3", "--dry-run") == [(0, 0, 7), (1, 0, 7)]
    assert trim("--to", "-3", "-p", "1") == [(1, 0, 7)]
    assert trim("--to", "5") == [(0, 0, 5), (1, 7, 7)]  # what is gone doesn't come back
    read = output("consume", name, "-o", ":end", "-f", "%p-%o ", **where)
    assert sorted(read.split()) == [*(f"0-{n}" for n in range(5, 10)), "1-7", "1-8", "1-9"]
    assert trim("--to", "end", "-p", "0") == [(0, 5, 10)]
    assert "has no partition 7" in failure(
        "topic", "trim", name, "--to", "1", "-p", "7", code=1, **where
    )
    said = failure("topic", "trim", name, "--to", "11", code=1, **where)
    assert f"OFFSET_OUT_OF_RANGE: 11 is behind the end of {name}-0 (10 to 10), {name}-1 (7" in said
    assert trim("--to", "0") == [(0, 10, 10), (1, 7, 7)]


def test_a_shell_completes_names_by_asking_the_broker(kraftpy: Broker, name: str) -> None:
    output("topic", "create", name, bootstrap=kraftpy.bootstrap)
    line = f"kraftpy acl add --topic {name[:-2]}"
    environment = {
        **os.environ,
        "KRAFTPY_BOOTSTRAP": kraftpy.bootstrap,
        "_KRAFTPY_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": "4",
    }
    script = "import sys; sys.argv = ['kraftpy']; from kraftpy.cli.app import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.decode() == f"plain,{name}\n", done.stderr


def test_the_timeout_bounds_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        said = failure("topic", "list", "--timeout", "0.3", code=3, bootstrap=where)
    assert "300 ms" in said

"""`kraftpy produce` and `kraftpy consume` against a real broker."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kraftpy.client.partitioner import partition_of_key
from kraftpy.testing import Broker
from tests.waiting import wait_until

from .commands import failure, output, run_command, running


@pytest.fixture
def topic(kraftpy: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    output("topic", "create", name, bootstrap=kraftpy.bootstrap)
    return name


@pytest.fixture
def produce(kraftpy: Broker, topic: str) -> Callable[..., str]:
    def run(data: bytes, *args: str) -> str:
        return output("produce", topic, *args, stdin=data, bootstrap=kraftpy.bootstrap)

    return run


@pytest.fixture
def consume(kraftpy: Broker, topic: str) -> Callable[..., str]:
    def run(*args: str) -> str:
        return output("consume", topic, *args, bootstrap=kraftpy.bootstrap)

    return run


def test_lines_in_lines_out(produce: Callable[..., str], consume: Callable[..., str]) -> None:
    produce("eins\nzwei\nübrig".encode())
    assert consume("-o", ":end") == "eins\nzwei\nübrig\n"


def test_produce_says_where_it_went(kraftpy: Broker, topic: str) -> None:
    done = run_command("produce", topic, stdin=b"a\nb\n", bootstrap=kraftpy.bootstrap)
    assert done.stderr.decode() == f"wrote 2 records to {topic}: partition 0 at offset 0 to 1\n"
    assert done.stdout == b""
    said = json.loads(
        output("produce", topic, "-o", "json", stdin=b"c\n", bootstrap=kraftpy.bootstrap)
    )
    assert said == {
        "topic": topic,
        "records": 1,
        "value_bytes": 1,
        "partitions": [{"partition": 0, "records": 1, "first_offset": 2, "last_offset": 2}],
    }


def test_offsets(produce: Callable[..., str], consume: Callable[..., str]) -> None:
    produce(b"".join(b"%d\n" % n for n in range(30)))

    def numbers(*args: str) -> list[int]:
        return [int(line) for line in consume(*args).split()]

    assert numbers("-o", "-10:end") == list(range(20, 30))
    assert numbers("-o", "+5", "-n", "3") == [5, 6, 7]
    assert numbers("-o", "28:end") == [28, 29]
    assert numbers("-n", "2") == [0, 1]
    assert numbers("-o", "end:end") == []
    assert numbers("-o", "@0:end") == list(range(30))
    assert numbers("-o", "@2999-01-01T00:00:00Z:end") == []


def test_timestamps(produce: Callable[..., str], consume: Callable[..., str]) -> None:
    produce(b"1000 a\n2000 b\n3000 c\n", "-f", r"%T %v\n")
    assert consume("-o", "@1500:end", "-f", r"%T=%v\n") == "2000=b\n3000=c\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(codec: str, produce: Callable[..., str], consume: Callable[..., str]) -> None:
    produce(b"a" * 10_000 + b"\n", "-z", codec)
    assert consume("-o", ":end") == "a" * 10_000 + "\n"


def test_everything_of_a_record(
    produce: Callable[..., str], consume: Callable[..., str], topic: str
) -> None:
    produce(b"k1 v1\n", "-f", r"%k %v\n", "-H", "source=test")
    produce(b"v2\n", "-k", "fixed")
    produce(b"ff00 v3\n", "-f", r"%k{hex} %v\n")
    assert consume("-n", "2", "-f", r"%t/%p/%o %k=%v %h\n").splitlines() == [
        f"{topic}/0/0 k1=v1 source=test",
        f"{topic}/0/1 fixed=v2 ",
    ]
    first, second, third = map(json.loads, consume("-o", "json", "-o", ":end").splitlines())
    assert first["headers"] == [["source", "test"]]
    assert (second["topic"], second["partition"], second["offset"]) == (topic, 0, 1)
    assert (second["key"], second["value"]) == ("fixed", "v2")
    assert third["key"] == {"base64": "/wA="}


def test_partitions(kraftpy: Broker, topic: str, consume: Callable[..., str]) -> None:
    output("topic", "alter", topic, "-p", "3", bootstrap=kraftpy.bootstrap)
    data = b"".join(b"k%d v%d\n" % (n, n) for n in range(30))
    output("produce", topic, "-f", r"%k %v\n", stdin=data, bootstrap=kraftpy.bootstrap)
    output("produce", topic, "-p", "1", stdin=b"chosen\n", bootstrap=kraftpy.bootstrap)
    for line in consume("-o", ":end", "-f", r"%p %k %v\n").splitlines():
        partition, key, value = line.split(" ")
        expected = partition_of_key(key.encode(), 3) if key else 1
        assert int(partition) == expected, value
    assert "chosen" in consume("-p", "1", "-o", "-1:end")
    said = failure("consume", topic, "-p", "7", code=1, bootstrap=kraftpy.bootstrap)
    assert "has no partition 7" in said
    said = failure("produce", topic, "-p", "7", stdin=b"x\n", code=2, bootstrap=kraftpy.bootstrap)
    assert "partitions 0 to 2, not 7" in said


def test_a_missing_topic(kraftpy: Broker) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    said = failure("consume", name, code=1, bootstrap=kraftpy.bootstrap)
    assert f"kraftpy topic create {name}" in said
    output("produce", name, stdin=b"made\n", bootstrap=kraftpy.bootstrap)
    assert output("consume", name, "-n", "1", bootstrap=kraftpy.bootstrap) == "made\n"


def test_an_offset_outside_the_log(kraftpy: Broker, topic: str) -> None:
    said = failure("consume", topic, "-o", "99", code=1, bootstrap=kraftpy.bootstrap)
    assert f"offset 99 is outside the log: {topic}-0 is empty, and the next record gets 0. " in said
    output("produce", topic, "-p", "0", stdin=b"a\nb\n", bootstrap=kraftpy.bootstrap)
    only = ("consume", topic, "-p", "0", "-o", "3")
    said = failure(*only, code=1, bootstrap=kraftpy.bootstrap)
    assert f"offset 3 is outside the log: {topic}-0 has 0 to 1. " in said


def test_bad_input_keeps_what_stands_before_it(kraftpy: Broker, topic: str) -> None:
    said = failure(
        "produce", topic, "-f", r"%k %v\n", stdin=b"a 1\nb\n", code=2, bootstrap=kraftpy.bootstrap
    )
    assert "record 2 has no ' ' behind its %k" in said
    assert output("consume", topic, "-o", ":end", bootstrap=kraftpy.bootstrap) == "1\n"


def test_a_file(tmp_path: Path, produce: Callable[..., str], consume: Callable[..., str]) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(b"line %d\n" % n for n in range(50_000)))
    produce(b"", str(file))
    assert consume("-o", ":end").encode() == file.read_bytes()


def test_no_input_writes_nothing(kraftpy: Broker, topic: str) -> None:
    for source in ((), ("/dev/null",)):
        done = run_command("produce", topic, *source, bootstrap=kraftpy.bootstrap)
        assert done.returncode == 0
        assert done.stderr.decode() == f"wrote 0 records to {topic}\n"
    assert "no broker answers" in failure("produce", topic, "/dev/null", code=3)


def test_progress_is_shown_on_a_terminal(kraftpy: Broker, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"x" * 100 + b"\n")
    master, slave = pty.openpty()
    try:
        command = [sys.executable, "-m", "kraftpy", "produce", topic, str(file)]
        command += ["-b", kraftpy.bootstrap]
        subprocess.run(command, stderr=slave, check=True, timeout=30)
        shown = os.read(master, 65536).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert "100%" in shown
    assert "wrote 1 record " in shown


def test_follows_until_ctrl_c(kraftpy: Broker, topic: str, produce: Callable[..., str]) -> None:
    produce(b"first\n")
    with running("consume", topic, bootstrap=kraftpy.bootstrap) as follower:
        assert follower.stdout_line() == "first"
        produce(b"second\n")
        assert follower.stdout_line() == "second"
        assert follower.end(signal.SIGINT) == 130
        assert follower.rest_of_stderr() == "\n"


def test_several_topics_and_patterns(kraftpy: Broker, topic: str) -> None:
    other, third = f"{topic}-b", f"{topic}-c"
    for name in (topic, other, third):
        output("produce", name, stdin=name.encode() + b"\n", bootstrap=kraftpy.bootstrap)
    for names, expected in (
        ((topic, third), [topic, third]),
        ((f"{topic}-?", topic), [topic, other, third]),
        ((f"{topic}*", topic), [topic, other, third]),
    ):
        read = output("consume", *names, "-o", ":end", "-f", r"%t\n", bootstrap=kraftpy.bootstrap)
        assert sorted(read.split()) == expected
    said = failure("consume", f"{topic}-x*", code=1, bootstrap=kraftpy.bootstrap)
    assert f"no topic matches '{topic}-x*'" in said
    said = failure("consume", topic, f"{topic}-x", code=1, bootstrap=kraftpy.bootstrap)
    assert f"topic '{topic}-x' does not exist" in said


def test_a_member_goes_on_behind_what_was_written(
    kraftpy: Broker, topic: str, produce: Callable[..., str], consume: Callable[..., str]
) -> None:
    produce(b"1\n2\n3\n")
    assert consume("-g", topic, "-n", "2") == "1\n2\n"
    with running("consume", f"{topic}*", "-g", topic, bootstrap=kraftpy.bootstrap) as member:
        assert member.stdout_line() == "3"
        produce(b"4\n")
        assert member.stdout_line() == "4"
        assert member.end(signal.SIGINT) == 130
    produce(b"5\n")
    assert consume("-g", topic, "-n", "1") == "5\n"
    for wrong in (("-o", "5"), ("-o", "end:end"), ("-p", "0")):
        failure("consume", topic, "-g", "g", *wrong, code=2, bootstrap=kraftpy.bootstrap)


def test_ctrl_c_writes_what_was_read_and_says_so(
    kraftpy: Broker, topic: str, consume: Callable[..., str]
) -> None:
    with running("produce", topic, bootstrap=kraftpy.bootstrap) as producer:
        producer.type(b"one\ntwo\nthr")
        assert consume("-n", "2") == "one\ntwo\n"
        assert producer.end(signal.SIGINT) == 130
        said = producer.rest_of_stderr().split("\n")
        assert f"wrote 2 records to {topic}: partition 0 at offset 0 to 1" in said


def test_sigterm_ends_a_member_as_ctrl_c_does(
    kraftpy: Broker, topic: str, produce: Callable[..., str], consume: Callable[..., str]
) -> None:
    produce(b"1\n")
    # What is written is committed once a second only: it is the signal that has it done at once.
    with running("consume", topic, "-g", topic, bootstrap=kraftpy.bootstrap) as member:
        assert member.stdout_line() == "1"
        produce(b"2\n")
        assert member.stdout_line() == "2"
        assert member.end(signal.SIGTERM) == 143
        assert member.rest_of_stderr() == ""
    (described,) = json.loads(
        output("group", "describe", topic, "-o", "json", bootstrap=kraftpy.bootstrap)
    )
    assert described["state"] == "Empty"
    produce(b"3\n")
    assert consume("-g", topic, "-n", "1") == "3\n"


def test_a_member_leaves_no_lag_behind_the_marker_of_a_transaction(
    kraftpy: Broker, topic: str, produce: Callable[..., str]
) -> None:
    produce(b"1\n")
    producer = Producer({"bootstrap.servers": kraftpy.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"2")
    producer.commit_transaction()

    def committed() -> int:
        shown = output("group", "offsets", "show", topic, "-o", "json", bootstrap=kraftpy.bootstrap)
        return max((each["offset"] for each in json.loads(shown)), default=-1)

    with running("consume", topic, "-g", topic, bootstrap=kraftpy.bootstrap) as member:
        assert [member.stdout_line(), member.stdout_line()] == ["1", "2"]
        wait_until(lambda: committed() == 3, "the marker is behind the group")
        assert member.end(signal.SIGINT) == 130
    assert committed() == 3


def test_sigterm_writes_what_was_read_and_says_so(
    kraftpy: Broker, topic: str, consume: Callable[..., str]
) -> None:
    with running("produce", topic, bootstrap=kraftpy.bootstrap) as producer:
        producer.type(b"one\n")
        assert consume("-n", "1") == "one\n"
        assert producer.end(signal.SIGTERM) == 143
        assert f"wrote 1 record to {topic}: partition 0" in producer.rest_of_stderr()


def test_a_refused_record_is_named_and_so_is_what_is_written(
    kraftpy: Broker, topic: str, consume: Callable[..., str]
) -> None:
    small = b"".join(b"%d\n" % n for n in range(5))
    lines = small + b"x" * 1_200_000 + b"\n" + small
    done = run_command("produce", topic, "-o", "json", stdin=lines, bootstrap=kraftpy.bootstrap)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "Record 6 of the input was not written, 10 others were" in said
    assert f"`kraftpy topic alter {topic} -c max.message.bytes=BYTES`" in said
    found = json.loads(done.stdout)
    assert (found["records"], found["not_written"], found["first_not_written"]) == (10, 1, 6)
    assert (found["error"], found["partitions"][0]["last_offset"]) == ("MESSAGE_TOO_LARGE", 9)
    assert consume("-o", ":end") == 2 * small.decode()


def test_end_waits_for_the_next(kraftpy: Broker, topic: str, produce: Callable[..., str]) -> None:
    produce(b"old\n")
    with running("consume", topic, "-o", "end", bootstrap=kraftpy.bootstrap) as follower:
        # The follower is at the end only some time after it started; it may miss the first ones.
        for n in range(100):
            produce(b"new %d\n" % n)
            if follower.has_output(0.2):
                break
        assert follower.stdout_line().startswith("new ")


def test_a_line_from_a_pipe_is_sent_before_the_next_one_comes(
    kraftpy: Broker, topic: str, consume: Callable[..., str]
) -> None:
    with running("produce", topic, bootstrap=kraftpy.bootstrap) as producer:
        producer.type(b"one\n")
        assert consume("-n", "1") == "one\n"


def test_a_closed_pipe_is_no_error(
    kraftpy: Broker, topic: str, produce: Callable[..., str]
) -> None:
    produce(b"x" * 1000 + b"\n")
    with running("consume", topic, bootstrap=kraftpy.bootstrap) as follower:
        assert follower.stdout_line() == "x" * 1000
        assert follower.process.stdout is not None
        follower.process.stdout.close()
        produce(b"y\n")
        assert follower.process.wait(30) == 0
        assert follower.rest_of_stderr() == ""


def test_a_header_may_occur_twice(produce: Callable[..., str], consume: Callable[..., str]) -> None:
    produce(b"v\n", "-H", "a=1", "-H", "b=2", "-H", "a=3")
    assert consume("-o", ":end", "-f", "%h") == "a=1,b=2,a=3"


def test_a_key_and_a_format_are_the_bytes_that_were_typed(
    produce: Callable[..., str], consume: Callable[..., str]
) -> None:
    produce(b"one\xfetwo\xfe", "-k", os.fsdecode(b"\xff"), "-f", os.fsdecode(b"%v\xfe"))
    assert consume("-o", ":end", "-f", "%k{hex} %v\\n") == "ff one\nff two\n"


def test_a_timestamp_beyond_64_bits_is_refused_with_its_place(kraftpy: Broker, topic: str) -> None:
    said = failure(
        "produce", topic, "-f", r"%T %v\n", stdin=b"1 a\n99999999999999999999 b\n", code=2,
        bootstrap=kraftpy.bootstrap,
    )  # fmt: skip
    assert "record 2: '99999999999999999999' is no %T. Written before it: 1" in said


@pytest.mark.parametrize("command", ["topic list >/dev/full", "consume {topic} -o :end >/dev/full"])
def test_a_full_disk_behind_stdout_is_a_sentence(
    kraftpy: Broker, topic: str, produce: Callable[..., str], command: str
) -> None:
    produce(b"v\n")
    done = _shell(command.format(topic=topic), kraftpy.bootstrap)
    assert done.returncode == 2
    assert done.stderr == (
        b"kraftpy: cannot read the input or write the output: No space left on device\n"
    )


def test_a_closed_pipe_behind_a_report_is_no_error(kraftpy: Broker, topic: str) -> None:
    with running("produce", topic, "-o", "json", bootstrap=kraftpy.bootstrap) as producer:
        assert producer.process.stdout is not None
        assert producer.process.stdin is not None
        producer.process.stdout.close()
        producer.process.stdin.close()
        assert producer.process.wait(30) == 0
        assert producer.rest_of_stderr() == ""


def test_streams_that_are_closed_are_empty(
    kraftpy: Broker, topic: str, produce: Callable[..., str]
) -> None:
    produce(b"v\n")
    for command in (f"produce {topic} <&-", f"produce {topic} </dev/null >&-", "topic list 2>&-"):
        done = _shell(command, kraftpy.bootstrap)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


def test_a_closed_stdout_cannot_be_written(
    kraftpy: Broker, topic: str, produce: Callable[..., str]
) -> None:
    produce(b"v\n")
    done = _shell(f"consume {topic} -o :end >&-", kraftpy.bootstrap)
    assert (done.returncode, done.stderr) == (
        2,
        b"kraftpy: cannot read the input or write the output: Bad file descriptor\n",
    )


def test_a_broker_that_dies_leaves_no_doubt_about_what_is_in_doubt(
    kraftpy_factory: Callable[..., Broker],
) -> None:
    broker = kraftpy_factory()
    output("topic", "create", "t", bootstrap=broker.bootstrap)
    with running("produce", "t", "--timeout", "1", bootstrap=broker.bootstrap) as producer:
        producer.type(b"one\n")
        output("consume", "t", "-n", "1", bootstrap=broker.bootstrap)
        broker.kill()
        producer.process.stdin.write(b"two\n")
        producer.process.stdin.close()
        assert producer.process.wait(30) == 3
        assert "Of 2 records read not all are known to be written" in producer.rest_of_stderr()


def _shell(command: str, bootstrap: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m kraftpy {command}"],
        capture_output=True,
        timeout=30,
        env={**os.environ, "KRAFTPY_BOOTSTRAP": bootstrap},
        check=False,
    )

"""Writing, reading and pairing histories: killed writers, damaged lines, several processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.consistency import Header, HistoryError, HistoryReader, HistoryWriter, check
from kraftpy.testing.consistency.history import LINE_BYTES_MAX, Event, Fault, Phase
from kraftpy.testing.consistency.operations import NEVER, Operation, load, pair

HEADER = Header("queue", seed=7, options={"idempotence": True}, versions={"kraftpy": "1"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    header = {"history": 1, "workload": "queue", "seed": 0, "options": {}, "versions": {}}
    texts = [
        line if isinstance(line, str) else json.dumps(line)
        for line in ({**header, "again": [], "started_at": ""}, *lines)
    ]
    path.write_text("\n".join(texts) + "\n")
    return path


def event(number: int, kind: str, f: str = "poll", **rest: Any) -> dict[str, Any]:
    return {"time": number, "process": 1, "op": 1, "type": kind, "f": f, **rest}


def test_what_is_written_is_read(path: Path) -> None:
    ticks = itertools.count(100)
    with HistoryWriter(path, HEADER, clock_ns=lambda: next(ticks)) as writer:
        writer.phase("load")
        op = writer.invoke(1, "send", [["t-0", 5]], client="confluent-kafka", node="1")
        other = writer.invoke(1, "send", [["t-0", "é"]])
        writer.fault("kill", "point", 3, ["broker 2"], "SIGKILL")
        writer.ok(1, op, "send", [["t-0", 5, 0]])
        writer.info(1, other, "send", "timed out")
        writer.note(2, "revoked", {"group": "g", "keys": ["t-0"]})
        writer.invoke(3, "poll")
        failed = writer.invoke(3, "fetch", {"group": "g", "key": "t-0"})
        writer.fail(3, failed, "fetch", "NOT_COORDINATOR")
    reader = HistoryReader(path)
    assert reader.header == HEADER
    phase, fault, first, *rest = pair(reader)
    assert phase == Phase(2, 100, "load")
    assert fault == Fault(5, 103, "kill", "point", 3, ("broker 2",), "SIGKILL")
    assert first == Operation(
        3, 1, "send", "ok", 101, 104, [["t-0", 5]], [["t-0", 5, 0]], "", "1", "confluent-kafka"
    )
    assert [
        (each.line, each.f, each.outcome, each.invoked_ns, each.ended_ns, each.error)
        for each in rest
        if isinstance(each, Operation)
    ] == [
        (4, "send", "info", 102, 105, "timed out"),
        (8, "revoked", "ok", 106, 106, ""),
        (10, "fetch", "fail", 108, 109, "NOT_COORDINATOR"),
        (9, "poll", "info", 107, NEVER, "never ended"),
    ]
    assert load(reader, {4}).keys() == {4}
    assert reader.torn_lines == 0
    assert path.read_bytes().endswith(b"}\n")


def test_a_second_history_does_not_overwrite_the_first(path: Path) -> None:
    HistoryWriter(path, HEADER).close()
    with pytest.raises(FileExistsError):
        HistoryWriter(path, HEADER)


CHILD = """
import sys
from kraftpy.testing.consistency import HistoryWriter
process = int(sys.argv[2])
writer = HistoryWriter(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while True:
    op = writer.invoke(process, "poll")
    writer.ok(process, op, "poll", {"t-0": [[n, "x" * 50] for n in range(300)]})
"""


def test_writers_that_are_killed_damage_no_line_but_their_own(path: Path) -> None:
    HistoryWriter(path, HEADER).close()
    processes = range(9)
    for three in (processes[:3], processes[3:6], processes[6:]):
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(path), str(process)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for process in three
        ]
        for child in children:  # else the first would write until the last has started
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
        signs = [b'"process":%d,"op":9,' % process for process in three]
        deadline = time.monotonic() + 30
        while not all(sign in path.read_bytes() for sign in signs):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
            child.communicate()
    reader = HistoryReader(path)
    found = {entry.process for entry in reader if isinstance(entry, Event)}
    assert found == set(processes)
    assert reader.torn_lines <= 9
    assert sum(1 for _ in pair(reader)) > 50


@pytest.mark.parametrize("cut", [1, 5, 40, 60, 74])
def test_a_torn_line_is_counted_and_its_operation_unknown(path: Path, cut: int) -> None:
    torn = json.dumps(event(2, "ok", value={"t-0": [[0, 5]]}))
    write(path, event(1, "invoke"), torn[:cut], {"time": 9, "phase": "final"})
    reader = HistoryReader(path)
    operations = [each for each in pair(reader) if isinstance(each, Operation)]
    assert [each.outcome for each in operations] == ["info"]
    assert reader.torn_lines == 1


def test_a_file_of_one_torn_line_at_its_end(path: Path) -> None:
    write(path, event(1, "invoke"))
    with path.open("a") as file:
        file.write('{"time": 2, "proc')
    assert check(HistoryReader(path)).torn_lines == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"time": 1,, "phase": "load"}', "not JSON"),
        ("17", "a line is a JSON object"),
        ({"time": -1, "phase": "load"}, "'time' is -1"),
        ({"time": 1, "phase": "lunch"}, "'phase' is none of load, heal, final"),
        ({"time": 1, "what": 2}, "neither an operation"),
        (event(1, "done"), "'type' is 'done', none of invoke, ok, fail, info"),
        (event(1, "invoke", "pol"), "'f' is 'pol', which no workload knows"),
        (event(1, "invoke", "send"), "the value of a send is a list"),
        (event(1, "invoke", "send", value=[["t-0", 1.5]]), "not a key (text) and a value"),
        (event(1, "invoke", "send", value=[["t-0", 1, 2]]), "has 2 parts here"),
        (event(1, "ok", "send", value=[["t-0", 1, -2]]), "-2 is not an offset"),
        (event(1, "ok", value={"t-0": [[1]]}), "a record of a poll is [offset, value]"),
        (event(1, "ok", value={"t-0": [[True, 1]]}), "is not an offset and a value"),
        (event(1, "ok"), "the value of a poll"),
        (event(1, "invoke", colour="red"), "there is no field 'colour'"),
        (event(1, "info", error=3), "'error' is no text"),
        ({**event(1, "invoke"), "process": "a"}, "'process' is 'a'"),
        ({**event(1, "invoke"), "op": None}, "'op' is None"),
        ({"time": 1, "process": 1, "type": "invoke", "f": "poll"}, "only an ok can do without"),
        (event(1, "ok", "fetch", value={"group": "g", "key": "k"}), "fetch has no 'offset'"),
        (event(1, "ok", "fetch"), "the value of fetch is an object"),
        (
            event(1, "invoke", "commit", value={"group": "g", "key": "k", "offset": -1}),
            "'offset' of commit can't be -1",
        ),
        (event(1, "invoke", "delete", value={"name": "a", "x": 1}), "delete has no field 'x'"),
        (event(1, "ok", "drain", value={"t-0": [5, 3]}), "the value of a drain"),
        (event(1, "ok", "txn", value=[["r", "k", None]]), "the read of 'k' has no list"),
        (event(1, "invoke", "txn", value=[["w", "k", 1]]), "'w' is neither 'append' nor 'r'"),
        ({"time": 1, "fault": "kill", "phase": "now"}, "'phase' of a fault"),
        ({"time": 1, "fault": "kill", "phase": "start", "id": 1}, "'targets' is a list"),
        ({"time": 1, "fault": "kill", "phase": "start", "size": 1}, "no field 'size'"),
    ],
)
def test_a_bad_line_is_named(path: Path, line: Any, problem: str) -> None:
    write(path, event(1, "invoke"), line)
    with pytest.raises(HistoryError, match="line 3: ") as caught:
        list(HistoryReader(path))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([event(1, "ok", value={})], "line 2: ok of operation 1 of process 1, which isn't"),
        ([event(1, "invoke"), event(2, "invoke")], "line 3: operation 1 of process 1 is under way"),
        (
            [event(5, "invoke"), event(4, "ok", value={})],
            "line 3: the operation of line 2 ends bef",
        ),
        (
            [event(1, "invoke"), event(4, "ok", "subscribe", value=[])],
            "line 3: the operation of line 2 began as poll",
        ),
    ],
)
def test_events_that_do_not_belong_together(
    path: Path, lines: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(HistoryError) as caught:
        list(pair(HistoryReader(write(path, *lines))))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no history begins like this"),
        ('{"time":1}\n', "no header"),
        ('{"history":2}\n', "format 2, and this version reads 1"),
        ('{"history":1,"workload":5}\n', "'workload' is missing or not of type str"),
    ],
)
def test_a_bad_header_is_named(path: Path, content: str, problem: str) -> None:
    path.write_text(content)
    with pytest.raises(HistoryError, match="line 1: ") as caught:
        HistoryReader(path)
    assert problem in str(caught.value)


def test_lines_have_a_limit(path: Path) -> None:
    with HistoryWriter(path, HEADER) as writer, pytest.raises(HistoryError, match="split"):
        writer.invoke(1, "send", [["t-0", "x" * LINE_BYTES_MAX]])
    with path.open("a") as file:
        file.write(" " * (LINE_BYTES_MAX + 10))
    with pytest.raises(HistoryError, match="line 2: longer than"):
        list(HistoryReader(path))


def test_a_workload_that_is_not_known(path: Path) -> None:
    HistoryWriter(path, Header("cinema")).close()
    with pytest.raises(HistoryError, match="no workload is called 'cinema'; there are queue,"):
        check(HistoryReader(path))


def test_an_empty_history_proves_nothing(path: Path) -> None:
    HistoryWriter(path, HEADER).close()
    assert check(HistoryReader(path)).valid is None

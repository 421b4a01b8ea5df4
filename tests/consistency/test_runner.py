"""What runs are made of: the schedule of faults, what workers record, plans that can't be run."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kraftpy.storage.directory import DAMAGED_SUFFIX
from kraftpy.testing import Cluster
from kraftpy.testing.consistency import Header, HistoryReader, HistoryWriter, crew
from kraftpy.testing.consistency.clients import GoneError, NotDoneError, UnknownError
from kraftpy.testing.consistency.crew import Process
from kraftpy.testing.consistency.faults import FAULTS, Act, Ground, Kind, LeftOut, Planned, schedule
from kraftpy.testing.consistency.faults.storage import flip_bits, lose_tail
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.plan import Plan, Result, RunError
from kraftpy.testing.consistency.report import judge
from kraftpy.testing.consistency.runner import _Run, run
from kraftpy.testing.consistency.worker import Task, Worker
from tests.waiting import wait_until


def test_a_schedule_follows_from_its_seed_and_leaves_nothing_out() -> None:
    faults = [*FAULTS, "kill+partition"]
    first = list(islice(schedule(7, faults), 3 * len(faults)))
    assert first == list(islice(schedule(7, faults), 3 * len(faults)))
    asked = ["slow+kill", "stop+slow", "kill+slow", "pause+slow"]  # joined: no others in between
    assert ["+".join(each.names) for each in islice(schedule(7, asked), 4)] == asked
    assert first != list(islice(schedule(8, faults), 3 * len(faults)))
    assert {"+".join(each.names) for each in first[: len(faults)]} == set(faults)
    assert list(schedule(7, [])) == []


def test_now_and_then_two_faults_overlap_that_work_on_different_parts() -> None:
    planned = list(islice(schedule(7, list(FAULTS)), 40 * len(FAULTS)))
    pairs = [each.names for each in planned if len(each.names) == 2]
    assert 0.1 < len(pairs) / len(planned) < 0.3
    assert all(len(each.names) <= 2 for each in planned)
    for names in pairs:
        first, then = (FAULTS[name].part for name in names)
        # What begins last ends first: nodes come back when links are whole.
        assert first is not None
        assert then is not None
        assert first < then
    alone = [each.names[0] for each in planned if len(each.names) == 1]
    assert set(alone[: len(FAULTS)]) == set(FAULTS)
    assert {name for names in pairs for name in names} == {
        name for name, kind in FAULTS.items() if kind.part is not None
    }
    assert all(len(each.names) == 1 for each in islice(schedule(7, ["kill"]), 50))


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    path = tmp_path / "history.jsonl"
    HistoryWriter(path, Header("offsets")).close()
    task = Task(
        workload="offsets",
        role="commit",
        number=4,
        history=str(path),
        bootstrap="",
        client="kraftpy",
        seed=1,
        rate=1000.0,
        started_ns=time.monotonic_ns(),
        options={},
    )
    worker = Worker(task, threading.Event())
    worker.new_session()
    return worker


def recorded(worker: Worker) -> list[Operation]:
    entries = pair(HistoryReader(worker.task.history))
    return [each for each in entries if isinstance(each, Operation)]


COMMIT = {"group": "g", "key": "t-0", "offset": 5}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (NotDoneError("refused"), "fail"),
        (UnknownError("timed out"), "info"),
        (GoneError("no answer in time"), "info"),
        (ZeroDivisionError("a client's bug"), "info"),
    ],
)
def test_what_is_known_of_an_operation_is_recorded(
    worker: Worker, error: Exception | None, outcome: str
) -> None:
    def act() -> int:
        if error is not None:
            raise error
        return 1

    goes_on = not isinstance(error, GoneError | ZeroDivisionError)
    if goes_on:
        done = worker.operate("commit", COMMIT, act, lambda _: None)
        assert done == (1 if error is None else None)
    else:
        with pytest.raises(type(error)):
            worker.operate("commit", COMMIT, act, lambda _: None)
    (operation,) = recorded(worker)
    assert (operation.outcome, operation.value) == (outcome, COMMIT)


def test_a_send_of_which_a_part_is_known_says_so(worker: Worker) -> None:
    asked = [["t-0", "a"], ["t-0", "b"]]

    def act() -> None:
        raise UnknownError("the second timed out", [7, None])

    def said(offsets: list[Any]) -> list[Any]:
        return [[*each, offset] for each, offset in zip(asked, offsets, strict=True)]

    worker.operate("send", asked, act, said)
    (operation,) = recorded(worker)
    assert operation.value == [["t-0", "a", 7], ["t-0", "b", None]]


def test_every_session_is_a_process_of_its_own(
    worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = [worker.process]

    def session() -> None:
        processes.append(worker.process)
        if len(processes) < 4:
            raise GoneError("the client broke")
        worker._stopping.set()

    worker.sessions(session)
    assert len(set(processes)) == 4
    assert "the client broke" in capsys.readouterr().err


def test_values_are_unique_among_workers(worker: Worker) -> None:
    values = [worker.unique() for _ in range(100)]
    assert values == sorted(set(values))
    assert {value % 1000 for value in values} == {worker.task.number}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"workload": "poetry"}, "no workload is called 'poetry'"),
        ({"faults": ["kill+earthquake"]}, "no fault is called 'earthquake'"),
        ({"faults": ["move-coordinator+kill"]}, "move-coordinator is alone"),
        ({"faults": ["partition"], "nodes": 1}, "partition takes 2 nodes at least"),
        ({"faults": ["kill"], "bootstrap": "x:1"}, "leave --bootstrap out"),
        ({"secure": True, "bootstrap": "x:1"}, "give --command-config"),
        ({"secure": True, "faults": ["kill+late-frames"]}, "what clients send is encrypted"),
        ({"workload": "groups", "roles": ["send", "king"]}, "groups has no role 'king'"),
        ({"clients": ["java"]}, "java can't be had here: a JDK"),
        ({"clients": ["pigeon"]}, "no client is called 'pigeon'"),
        ({"workload": "metadata", "clients": ["kafka-python"]}, "metadata needs one of"),
    ],
)
def test_a_plan_that_cannot_be_run_says_why(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    plan = Plan(**{"workload": "queue", "folder": tmp_path / "out", **options})
    with pytest.raises(RunError, match=problem):
        run(plan, say=print)
    assert not (tmp_path / "out").exists()


class _NoNodes(Cluster):
    """What the bookkeeping of a fault needs of a cluster, which is its name."""

    def __init__(self) -> None:
        self.nodes = {}

    @property
    def bootstrap(self) -> str:
        return "127.0.0.1:1"


def test_a_fault_that_did_nothing_is_told_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(said: str | None, _: Ground) -> Act:
        return Act([2], "SIGKILL", lambda: said, lambda: None)

    happened = {"kill": None, "lose-tail": "9 bytes are gone", "bit-flip": LeftOut("no segment")}
    for name, said in happened.items():
        monkeypatch.setitem(FAULTS, name, Kind("", partial(plan, said)))
    tested = _Run(Plan("queue", tmp_path, list(happened)), _NoNodes(), None, lambda _: None)
    tested._history.phase("load")
    for name in happened:
        tested._inflict_one(_NoNodes(), Planned((name,), "any", 1, 0.0, 0.0, False))
    tested._history.close()
    assert tested._result.faults == {"kill": 1, "lose-tail": 1}
    assert tested._result.void == ["bit-flip: no segment"]
    _, report = judge(HistoryReader(tmp_path / "history.jsonl"))
    assert [(each["name"], each["detail"], each["came"]) for each in report["faults"]] == [
        ("kill", "SIGKILL", True),
        ("lose-tail", "SIGKILL; 9 bytes are gone", True),
        ("bit-flip", "left out: no segment", False),
    ]
    assert report["kinds"]["missed"] == {"bit-flip": "left out: no segment"}


def test_logs_without_anything_to_damage_are_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    rng = random.Random(1)
    (folder / "00000000000000000000.log").touch()
    assert isinstance(lose_tail(tmp_path, rng), LeftOut)
    assert isinstance(flip_bits(tmp_path, rng), LeftOut)
    (folder / "00000000000000000000.log").write_bytes(b"x" * 100)
    (folder / "00000000000000000007.log").touch()
    shutil.copytree(folder, tmp_path / f"t-0.0{DAMAGED_SUFFIX}")
    said = flip_bits(tmp_path, rng)
    assert "a bit flipped in t-0/" in said
    assert DAMAGED_SUFFIX not in said
    assert not isinstance(said, LeftOut)


class _Stuck(Task):
    """A worker that doesn't end, or ends badly."""

    def command(self) -> list[str]:
        return ["sleep", "60"] if self.number else ["false"]


def test_final_workers_that_are_not_done_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "FINAL_TIMEOUT_S", 0.5)
    said: list[str] = []
    tested = _Run(Plan("queue", tmp_path), _NoNodes(), None, said.append)
    for number in (0, 1):
        task = _Stuck("queue", "drain", number, "", "", "kraftpy", 1, 1.0, 0, {})
        tested._crew._workers.append(Process(task, tmp_path / "workers.log"))
    try:
        tested._crew.wait_for_final()
    finally:
        tested._crew.dismiss(0.0)
    assert (tested._result.dead, tested._result.killed) == (1, 1)
    assert said == [
        "the final drain of kraftpy ended with 1",
        "the final drain of kraftpy did not end: killed",
    ]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        # What stops first is there once, and our client does what a library can't.
        (
            {"clients": ["aiokafka"], "roles": ["send", "join"], "concurrency": 4},
            [("send", "kraftpy"), *[("join", "aiokafka")] * 3],
        ),
        (
            {"clients": ["kafka-python", "kraftpy"], "roles": ["join", "send"], "concurrency": 3},
            [("join", "kafka-python"), ("send", "kafka-python"), ("join", "kraftpy")],
        ),
    ],
)
def test_workers_take_roles_in_turn(
    tmp_path: Path, options: dict[str, Any], parts: list[tuple[str, str]]
) -> None:
    tested = _Run(Plan("groups", tmp_path, **options), _NoNodes(), None, lambda _: None)
    assert [(part.role, client) for part, client in tested._crew._parts()] == parts
    tested._history.close()


class _Script(Task):
    """A worker that ends when it is told to, or by itself."""

    def command(self) -> list[str]:
        script = "echo '{\"process\": 7}'; " + ("read line" if self.number else "exit 0")
        return ["sh", "-c", script]


def noted(path: Path) -> list[tuple[str, str]]:
    operations = [each for each in pair(HistoryReader(path)) if isinstance(each, Operation)]
    return [(each.f, each.value.get("detail", "")) for each in operations]


def test_who_was_told_to_leave_is_replaced_when_it_may_come_back(tmp_path: Path) -> None:
    tested = _Run(Plan("groups", tmp_path, clients=["kraftpy"]), _NoNodes(), None, lambda _: None)
    crew, group = tested._crew, tested._options["groups"]["classic"]
    hired: list[str] = []
    crew._hire = lambda part, _: hired.append(part.role)  # type: ignore[method-assign]
    task = _Script("groups", "join", 1, "", "", "kraftpy", 1, 1.0, 0, {})
    member = Process(task, tmp_path / "workers.log")
    crew._workers.append(member)
    assert crew.members() == {group: 1}
    member.leave()
    wait_until(lambda: member.ended == 0, "it ends", 10)
    crew.watch_until(time.monotonic())
    assert (hired, crew.members(), crew.alive) == ([], {}, [])
    member.come_back()
    crew.watch_until(time.monotonic() + 0.01)
    assert hired == ["join"]
    assert tested._result == Result()
    tested._history.close()
    assert noted(tmp_path / "history.jsonl") == [("gone", "")]


def test_a_member_that_ends_by_itself_or_does_not_leave_is_told(tmp_path: Path) -> None:
    tested = _Run(Plan("groups", tmp_path, clients=["kraftpy"]), _NoNodes(), None, lambda _: None)
    crew = tested._crew
    crew._hire = lambda *_: None  # type: ignore[method-assign]
    task = _Script("groups", "join", 0, "", "", "kraftpy", 1, 1.0, 0, {})
    member = Process(task, tmp_path / "workers.log")
    crew._workers.append(member)
    wait_until(lambda: member.ended == 0, "it ends", 10)
    crew.watch_until(time.monotonic() + 0.01)
    stuck = Process(_Stuck(**{**asdict(task), "number": 1}), tmp_path / "workers.log")
    stuck.sessions.append(8)
    crew._workers.append(stuck)
    crew.dismiss(0.2)
    tested._history.close()
    assert (tested._result.dead, tested._result.killed) == (1, 1)
    assert [each for each in noted(tmp_path / "history.jsonl") if each[0] == "ended"] == [
        ("ended", "ended by itself with 0"),
        ("ended", "had not left after 0.2 s"),
    ]


def test_make_consistency_gives_its_seed_to_all_that_it_runs() -> None:
    root = Path(__file__).parents[2]
    command = ["make", "-n", "consistency", "SEED=7"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    kills, matrix = (each for each in done.stdout.splitlines() if "consistency" in each)
    assert kills.split()[-2:] == matrix.split()[-2:] == ["--seed", "7"]

"""Runs of every workload: green with faults on a sound build, red on builds that are broken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from kraftpy.testing import Broker, process
from kraftpy.testing.consistency import Header, HistoryReader, Outcome, Verdict, check
from kraftpy.testing.consistency.faults import FAULTS, kinds
from kraftpy.testing.consistency.history import Phase
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.plan import Plan, Result
from kraftpy.testing.consistency.runner import run
from kraftpy.testing.consistency.verdicts import word

from . import catch
from .broken import BUILDS, CASES, broken_cluster
from .catch import found_by, load

# Seeds whose first fault comes early: for a few seconds, or for longer than a session of a broker.
SHORT_SEED, LONG_SEED = 39, 207
TRANSACTIONS_S = 6.0
# One that has room for six kinds, a pause for longer than a session among them.
REPLICAS_SEED, REPLICAS_S = 22249, 20
# One with which four coordinators are killed in a few seconds.
COORDINATORS_SEED, COORDINATORS_S = 48827, 11.5


def longer(time_limit_s: float) -> tuple[float, float]:
    """On a machine that is so busy that too little finds room in a run, a longer one follows."""
    return time_limit_s, 2 * time_limit_s


def judged(plan: Plan, result: Result) -> Outcome:
    assert not result.unhealthy
    assert not result.dead
    assert sum(result.faults.values()) >= 1
    reader = HistoryReader(plan.history)
    outcome = check(reader)
    assert [e.name for e in reader if isinstance(e, Phase)] == ["load", "heal", "final"]
    return outcome


@pytest.mark.parametrize(
    ("workload", "fault"),
    [
        ("queue", "kill"),
        ("offsets", "pause"),
        ("groups", "kill"),
        ("metadata", "partition"),
        ("cooperative", "kill"),
        ("share", "kill"),
    ],
)
def test_promises_are_kept_under_a_fault(tmp_path: Path, workload: str, fault: str) -> None:
    asked: list[Result] = []

    def keep(result: Result) -> bool:
        asked.append(result)
        return True

    for time_limit_s in longer(4.5):
        plan = Plan(
            workload,
            tmp_path / str(time_limit_s),
            [fault],
            time_limit_s=time_limit_s,
            rate=135,
            seed=SHORT_SEED,
        )
        result = run(plan, say=print, keep=keep)
        outcome = judged(plan, result)
        assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
        assert asked.pop() == result
        if outcome.operations > 200:
            break
    assert outcome.operations > 200
    for node in ("node1", "node2", "node3"):
        assert result.kept is not None
        assert "kraftpy" in (result.kept / node / "log").read_text()
        assert list((result.kept / node / "data").glob("__consumer_offsets-*")) or workload in (
            "queue",
            "metadata",
        )
    if workload == "queue":
        said = {each.checker: word(each.valid, each.counts) for each in outcome.verdicts}
        assert set(said.values()) == {"kept"}, said  # each one had something to judge
    if workload == "offsets":
        assert compared_and_set(plan) > 20
    assert outcome.header.options["clients"] == [
        "confluent-kafka",
        "kafka-python",
        "kraftpy",
        "aiokafka",
    ]


@pytest.mark.parametrize(
    ("workload", "faults"),
    [
        ("list-append", ["late-frames", "kill"]),
        ("bank", ["hijack", "pause"]),
    ],
)
def test_transactions_are_whole_under_faults(
    tmp_path: Path, workload: str, faults: list[str]
) -> None:
    for time_limit_s in longer(TRANSACTIONS_S):
        plan = Plan(
            workload,
            tmp_path / str(time_limit_s),
            faults,
            time_limit_s=time_limit_s,
            rate=135,
            seed=SHORT_SEED,
            clients=("confluent-kafka", "kraftpy"),
        )
        result = run(plan, say=print)
        outcome = judged(plan, result)
        assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
        if outcome.operations > 100:
            break
    assert faults[0] in result.faults
    assert outcome.operations > 100
    counts = {each.checker: each.counts for each in outcome.verdicts}
    assert counts["torn"]["transactions"] > 50
    assert counts["torn"]["drains"] == 2
    assert counts["stuck"]["logs"] > 0


def test_commits_are_whole_whenever_their_coordinator_is_killed(tmp_path: Path) -> None:
    """Four kills, through the coordinator and through any broker."""
    for time_limit_s in longer(COORDINATORS_S):
        plan = Plan(
            "commits",
            tmp_path / str(time_limit_s),
            ["kill-coordinator"],
            time_limit_s=time_limit_s,
            rate=400,
            concurrency=4,
            seed=COORDINATORS_SEED,
        )
        result = run(plan, say=print)
        outcome = judged(plan, result)
        assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
        if result.faults["kill-coordinator"] >= 4:
            break
    assert list(result.faults) == ["kill-coordinator"]
    assert result.faults["kill-coordinator"] >= 4
    done = Counter(
        (each.f, each.outcome)
        for each in pair(HistoryReader(plan.history))
        if isinstance(each, Operation)
    )
    assert done["commit-all", "ok"] > 80
    assert done["fetch-all", "ok"] > 80


@pytest.mark.timeout(300)
def test_replicas_are_the_same_after_all_that_can_be_done_to_nodes(tmp_path: Path) -> None:
    """The short form of `make torture`."""
    faults = torture()
    for time_limit_s in longer(REPLICAS_S):
        folder = tmp_path / str(time_limit_s)
        plan = Plan(
            "replicas", folder, faults, time_limit_s=time_limit_s, rate=60, seed=REPLICAS_SEED
        )
        result = run(plan, say=print)
        outcome = judged(plan, result)
        assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
        if len(result.faults) >= 5:
            break
    assert len(result.faults) >= 5
    said = {each.checker: each.counts for each in outcome.verdicts}
    assert said["unacknowledged"]["acknowledged"] > 1000  # there was load, and it was answered
    assert said["replica-divergence"]["replicas"] == 9
    assert said["two-leaders"]["epochs"] > 3
    assert said["metadata-divergence"]["comparisons"] == 3


def torture() -> list[str]:
    """The faults of `make torture`, all of which there are."""
    root = Path(__file__).parents[2]
    command = ["make", "-n", "torture", "MINUTES=2"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[words.index("--workload") + 1] == "replicas"
    faults = words[words.index("--faults") + 1].split(",")
    assert set(kinds(faults)) <= FAULTS.keys()
    return faults


def compared_and_set(plan: Plan) -> int:
    """How many commits were done under a condition."""
    return sum(
        "expected" in each.asked
        for each in pair(HistoryReader(plan.history))
        if isinstance(each, Operation) and each.f == "commit" and each.outcome == "ok"
    )


def test_every_build_replaces_what_is_there() -> None:
    """A rule that has moved would leave a build sound. All of them, one on top of the other."""
    program = (
        "from tests.consistency.broken import BUILDS\n"
        "from tests.consistency.test_runs import replaceable\n"
        "for name, take_out in BUILDS.items():\n"
        "    before = replaceable()\n"
        "    take_out()\n"
        "    after = replaceable()\n"
        "    assert after.keys() == before.keys(), f'{name} adds what nobody asks for'\n"
        "    assert any(after[each] is not before[each] for each in before), name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert BUILDS.keys() == CASES.keys()


def replaceable() -> dict[tuple[str, str], object]:
    """What kraftpy's modules and their classes consist of, by where it is."""
    found: dict[tuple[str, str], object] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("kraftpy."):
            continue
        for attribute, value in vars(module).items():
            found[name, attribute] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {(f"{name}.{attribute}", each): of for each, of in vars(value).items()}
    return found


def test_a_broken_build_is_caught(tmp_path: Path) -> None:
    """The quickest of `make broken`, which runs them all.

    A leader that is cut off loses what it answers until it is replaced: on a machine that is so
    busy that it answers nothing in that time, a run shows nothing, and a longer one follows.
    """
    case, make_cluster = CASES["acks_before_replication"], broken_cluster("acks_before_replication")
    found: list[list[str]] = []
    for time_limit_s in (7.5, 15, 30):
        folder = tmp_path / str(time_limit_s)
        found.append(found_by(load(case, folder, LONG_SEED, make_cluster, time_limit_s)))
        if case.checkers.intersection(found[-1]):
            return
    pytest.fail(f"three runs of a broken build found {found}")


@pytest.mark.parametrize(("took_s", "counts"), [(299.0, True), (301.0, False)])
def test_a_catch_counts_within_the_limit_only(
    monkeypatch: pytest.MonkeyPatch, took_s: float, counts: bool
) -> None:
    """The last run begins before the limit, and may end behind it."""
    name = "acks_before_replication"
    (checker, *_) = CASES[name].checkers
    broken = Verdict(checker, False, "", "")
    moments = iter([0.0, 269.0, took_s])
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now = next(moments, now)
        return now

    monkeypatch.setattr(catch, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(catch, "load", lambda *_: Outcome(Header("queue"), [broken], 1, 0))
    assert catch.catch(name, 1) == (took_s, [checker] if counts else [])


def test_a_client_that_dies_is_replaced_and_owns_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "popen", subprocess.Popen)  # its command says whose client it is
    killed: list[int] = []

    def kill_a_member() -> None:
        children = Path(f"/proc/self/task/{main_thread}/children").read_text().split()
        members = [pid for pid in children if b'"role": "join"' in command_of(pid)]
        killed.append(int(members[0]))
        os.kill(killed[0], signal.SIGKILL)

    def command_of(pid: str) -> bytes:
        return Path(f"/proc/{pid}/cmdline").read_bytes()

    main_thread = threading.get_native_id()
    timer = threading.Timer(2.5, kill_a_member)
    with Broker() as broker:
        timer.start()
        plan = Plan("groups", tmp_path, time_limit_s=5, seed=1, bootstrap=broker.bootstrap)
        result = run(plan, say=print)
        timer.join()
    assert (len(killed), result.dead, result.killed) == (1, 1, 0)
    reader = HistoryReader(plan.history)
    operations = [each for each in pair(reader) if isinstance(each, Operation)]
    assert any(each.f == "gone" and not each.client for each in operations)
    broken = {each.checker: each.explanation for each in check(reader).verdicts if not each.valid}
    assert broken.keys() == {"leaving"}, broken  # nobody had told it to
    assert "ended by itself with -9" in broken["leaving"]

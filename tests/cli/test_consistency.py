"""`kraftpy consistency check` on stored histories."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.metadata.levels import LEVEL
from kraftpy.testing import Broker
from kraftpy.testing.consistency import Header, HistoryWriter

from .commands import failure, output, run_command


def write(path: Path, *reads: Any, workload: str = "offsets") -> str:
    """A commit of 5, a commit of 7, and what is read then."""
    where = {"group": "g", "key": "t-0"}
    with HistoryWriter(path, Header(workload, seed=3)) as writer:
        for offset in (5, 7):
            op = writer.invoke(1, "commit", {**where, "offset": offset})
            writer.ok(1, op, "commit")
        for offset in reads:
            op = writer.invoke(2, "fetch", where)
            writer.ok(2, op, "fetch", {**where, "offset": offset})
    return str(path)


@pytest.fixture
def good(tmp_path: Path) -> str:
    return write(tmp_path / "good.jsonl", 7)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    return write(tmp_path / "bad.jsonl", 7, 5)


def test_a_history_in_which_all_was_kept(good: str) -> None:
    said = output("consistency", "check", good)
    assert said.startswith(f"{good}: offsets, seed 3, 3 operations")
    for promise in ("linearizable", "stale-read", "offset-regression"):
        assert f"\n{promise} " in said
    assert "BROKEN" not in said


def test_a_broken_promise_is_an_exit_code_and_a_story(bad: str) -> None:
    done = run_command("consistency", "check", bad)
    assert done.returncode == 6
    said = done.stdout.decode()
    assert "offset-regression  BROKEN  g/t-0: the offset went back from 7 to 5" in said
    assert "  line 2  process 1" in said
    assert "fetch ok" in said


def test_json_for_programs(good: str, bad: str) -> None:
    done = run_command("consistency", "check", good, bad, "-o", "json")
    assert done.returncode == 6
    first, second = json.loads(done.stdout)
    assert (first["path"], first["valid"], first["operations"]) == (good, True, 3)
    assert second["valid"] is False
    broken = [each["checker"] for each in second["verdicts"] if each["valid"] is False]
    assert broken == ["linearizable", "stale-read", "offset-regression"]


def test_an_empty_history_is_undecided(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    HistoryWriter(path, Header("queue")).close()
    assert run_command("consistency", "check", str(path)).returncode == 7


def test_reports_are_written(good: str, bad: str, tmp_path: Path) -> None:
    output("consistency", "check", good, "--report", str(tmp_path / "one"))
    assert "<!doctype html>" in (tmp_path / "one" / "report.html").read_text()
    failure("consistency", "check", good, bad, "--report", str(tmp_path / "two"), code=6)
    report = json.loads((tmp_path / "two" / "02-bad" / "report.json").read_text())
    assert report["valid"] is False
    said = failure("consistency", "check", good, "--report", good, code=2)
    assert "is a file" in said


def test_what_cannot_be_read_is_said(good: str, tmp_path: Path) -> None:
    said = failure("consistency", "check", str(tmp_path / "none"), code=2)
    assert f"cannot read {tmp_path / 'none'}: No such file" in said
    with Path(good).open("a") as file:
        file.write('{"time":1,"process":1,"op":77,"type":"ok","f":"poll","value":{}}\n')
    assert f"{good}, line 8: ok of operation 77" in failure("consistency", "check", good, code=2)
    Path(good).write_text("hello\n")
    assert f"{good}, line 1: no history" in failure("consistency", "check", good, code=2)
    said = failure("consistency", "check", write(tmp_path / "x", workload="cinema"), code=2)
    assert "no workload is called 'cinema'" in said


def test_the_list_names_what_can_be_run() -> None:
    said = json.loads(output("consistency", "list", "-o", "json"))
    assert list(said["workloads"]) == [
        "queue", "replicas", "offsets", "commits", "groups", "metadata",
        "list-append", "transform", "bank", "cooperative", "share",
    ]  # fmt: skip
    assert {"kill", "pause", "partition", "slow", "lose-tail", "reassign"} <= said["faults"].keys()
    assert said["clients"]["kraftpy"] == "installed"
    assert "kill -9 of all nodes" in output("consistency", "list")


def test_a_peer_that_is_there_can_be_tested(tmp_path: Path) -> None:
    with Broker() as broker:
        bootstrap = broker.bootstrap
        done = run_command(
            "consistency", "run", "--workload", "queue,metadata", "--bootstrap", bootstrap,
            "--time-limit", "2", "--seed", "7", "--out", str(tmp_path), "-o", "json",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    queue, metadata = json.loads(done.stdout)
    for report, workload, seed in ((queue, "queue", 7), (metadata, "metadata", 8)):
        assert (report["valid"], report["workload"], report["seed"]) == (True, workload, seed)
        folder = Path(report["path"]).parent
        assert folder == tmp_path / f"{workload}-{seed}-1"
        assert (folder / "report.html").exists()
        assert f"--workload {workload}" in report["again"]
        assert f"--bootstrap {bootstrap}" in report["again"]
        assert report["versions"]["peer"].startswith("software unknown")
        assert report["versions"]["peer features"] == (
            "eligible.leader.replicas.version 1 to 1, 1 in use, group.version 1 to 1, 1 in use, "
            f"kraftpy.metadata.level 1 to {LEVEL}, {LEVEL} in use, "
            "metadata.version 33 to 33, 33 in use"
        )
        assert "PRODUCE 0 to " in report["versions"]["peer APIs"]
        assert "software unknown" in (folder / "report.html").read_text()
    assert b"2 runs in " in done.stderr
    assert re.search(rb"1[89] of 19 promises kept", done.stderr)
    assert "queue-7-1/report.html" in (tmp_path / "index.html").read_text()


def test_a_fault_that_never_came_is_undecided(tmp_path: Path) -> None:
    """There is no room for it: even the first one comes after a second."""
    done = run_command(
        "consistency", "run", "--workload", "offsets", "--faults", "kill", "--time-limit", "1",
        "--seed", "7", "--out", str(tmp_path), "-o", "json",
    )  # fmt: skip
    assert done.returncode == 7, done.stderr.decode()
    assert b"never came: kill; a longer --time-limit has room for more" in done.stderr
    (report,) = json.loads(done.stdout)
    assert report["kinds"]["missed"] == {"kill": "the time was too short"}


def test_a_broken_promise_is_kept_beside_its_report(bad: str, tmp_path: Path) -> None:
    failure("consistency", "check", bad, "--report", str(tmp_path / "out"), code=6)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    names = [each["path"] for each in report["files"]]
    assert "anomaly-offset-regression.jsonl" in names
    done = run_command("consistency", "check", str(tmp_path / "out" / names[-1]))
    assert done.returncode == 6


def test_a_run_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    command = ("consistency", "run", "--out", out)
    assert "there are queue, replicas, offsets" in failure(*command, "--workload", "poetry", code=2)
    assert "there are kill," in failure(*command, "--faults", "earthquake", code=2)

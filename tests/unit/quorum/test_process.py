"""Controllers as processes of their own: kill -9, dying parents, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import CONFIRMED_SUFFIX, Journal
from kraftpy.quorum.port import Entry
from kraftpy.quorum.process import ExitCode
from kraftpy.quorum.snapshot import JOURNAL_NAME
from kraftpy.quorum.state import pack_envelope
from tests.loops import run
from tests.processes import free_port
from tests.waiting import until

from .stack import TIMEOUT_MS, VOTER, Broker

SCRIPT = Path(__file__).with_name("controller_main.py")


class Parent:
    """A `controller_main` process."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def say(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.say(**command)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def spawn(self, folder: Path, **options: Any) -> dict[str, Any]:
        return self.ask(spawn={"metadata_dir": str(folder), **options})

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    started = Parent(tmp_path / "log")
    yield started
    started.close()


def gone(pid: int, timeout_s: float = 10) -> bool:
    """Wait until no process (or only a zombie) has this id."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.005)
    return False


def broker_of(started: dict[str, Any], port: int | None = None) -> Broker:
    return Broker({VOTER: port or started["port"]}, secret=started["secret"].encode())


async def values_of(started: dict[str, Any]) -> list[Any]:
    async with broker_of(started) as broker:
        await broker.client.barrier(TIMEOUT_MS)
        return broker.copy.values


def test_start_propose_stop_and_start_again(parent: Parent, tmp_path: Path) -> None:
    async def add(started: dict[str, Any]) -> None:
        async with broker_of(started) as broker:
            await broker.add("x")

    started = parent.spawn(tmp_path / "m")
    run(lambda: add(started))
    assert parent.ask(stop=True) == {"exit_code": ExitCode.STOPPED}
    again = parent.spawn(tmp_path / "m")
    assert asyncio.run(values_of(again)) == ["x"]
    assert Path(f"/proc/{again['pid']}/comm").read_text() == "kraftpy-quorum\n"


async def test_kill_9_at_random_moments_loses_and_doubles_nothing(
    parent: Parent, tmp_path: Path
) -> None:
    """Twenty kills under load: every acknowledged proposal is there, none is there twice."""
    seed = int(os.environ.get("KRAFTPY_SEED", time.time_ns() & 0xFFFF))
    print(f"KRAFTPY_SEED={seed}")
    rng = random.Random(seed)
    port = free_port()
    folder = tmp_path / "m"

    def start() -> dict[str, Any]:
        return parent.spawn(folder, port=port, snapshot_interval_bytes=20_000)

    loop = asyncio.get_running_loop()
    started = start()
    acknowledged: set[int] = set()
    proposed = 0
    stopping = False

    async def propose_for_ever(broker: Broker) -> None:
        nonlocal proposed
        while not stopping:
            proposed += 1
            value = proposed
            await broker.add(value, timeout_ms=20_000)
            assert value not in acknowledged
            acknowledged.add(value)

    async with broker_of(started) as broker:
        tasks = [asyncio.ensure_future(propose_for_ever(broker)) for _ in range(20)]
        for _ in range(20):
            enough = len(acknowledged) + 20
            await until(lambda: len(acknowledged) >= enough)  # noqa: B023
            await asyncio.sleep(rng.uniform(0, 0.05))
            os.kill(started["pid"], signal.SIGKILL)
            await loop.run_in_executor(None, lambda: parent.ask(watch=True))
            started = await loop.run_in_executor(None, start)
        stopping = True
        await asyncio.gather(*tasks)
        await broker.client.barrier(TIMEOUT_MS)
        assert len(broker.copy.values) == len(set(broker.copy.values))
        assert set(broker.copy.values) == acknowledged
        assert len(acknowledged) == proposed, "every proposal got its answer in the end"
        assert await values_of(started) == broker.copy.values
        assert broker.client.term == 21
    assert list(folder.glob("*.checkpoint")), "the kills also hit snapshots and compaction"


def test_a_dead_parent_takes_its_controller_along(parent: Parent, tmp_path: Path) -> None:
    started = parent.spawn(tmp_path / "m")
    parent.process.kill()
    assert gone(started["pid"])


def test_a_parent_notices_the_death_of_its_controller(parent: Parent, tmp_path: Path) -> None:
    started = parent.spawn(tmp_path / "m")
    parent.say(watch=True)
    os.kill(started["pid"], signal.SIGKILL)
    assert parent.process.stdout is not None
    assert json.loads(parent.process.stdout.readline()) == {"exit_code": -signal.SIGKILL}
    assert parent.ask(watch=True) == {"exit_code": -signal.SIGKILL}, "also when it asks later"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_reaches_the_whole_group_is_for_the_parent_only(
    parent: Parent, tmp_path: Path, number: signal.Signals
) -> None:
    started = parent.spawn(tmp_path / "m")
    assert asyncio.run(values_of(started)) == []
    os.kill(started["pid"], number)
    assert asyncio.run(values_of(started)) == []
    assert parent.ask(stop=True) == {"exit_code": ExitCode.STOPPED}


def test_a_child_keeps_no_descriptor_of_its_parent(parent: Parent, tmp_path: Path) -> None:
    """Only the log, the listening socket, the lock, the journal, its note, and the loop's."""
    started = parent.spawn(tmp_path / "m")
    asyncio.run(values_of(started))
    targets = []
    for descriptor in Path(f"/proc/{started['pid']}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the connection above is about to be closed
            targets.append(descriptor.readlink())
    devices = {t for t in targets if t.is_relative_to("/dev") and not t.is_relative_to(tmp_path)}
    files = {t.name for t in targets if t.is_absolute() and t not in devices}
    assert files == {".lock", "log", JOURNAL_NAME, f"quorum{CONFIRMED_SUFFIX}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_controller_on_its_own_stops_on_a_signal(
    parent: Parent, tmp_path: Path, number: signal.Signals
) -> None:
    port = free_port()
    parent.say(run={"metadata_dir": str(tmp_path / "m"), "port": port})
    deadline = time.monotonic() + 10
    while "controller-started" not in parent.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    secret = (tmp_path / "m" / "quorum.secret").read_text().strip()
    assert asyncio.run(values_of({"port": port, "secret": secret})) == []
    parent.process.send_signal(number)
    assert parent.process.wait(10) == ExitCode.STOPPED


def test_a_damaged_journal_ends_the_process_with_a_sentence(parent: Parent, tmp_path: Path) -> None:
    started = parent.spawn(tmp_path / "m")
    asyncio.run(values_of(started))
    parent.ask(stop=True)
    journal = tmp_path / "m" / JOURNAL_NAME
    data = bytearray(journal.read_bytes())
    data[20] ^= 1
    journal.write_bytes(data)
    parent.spawn(tmp_path / "m")
    assert parent.ask(watch=True) == {"exit_code": ExitCode.DATA_DAMAGED}
    assert f"does not start: quorum journal {journal} is damaged at byte" in parent.log.read_text()
    assert journal.read_bytes() == bytes(data)


def test_a_journal_that_is_zeroed_in_its_middle_ends_the_process_with_a_sentence(
    parent: Parent, tmp_path: Path
) -> None:
    """Zeros follow to the end, as an interrupted write leaves them, but they were confirmed."""

    async def add() -> None:
        async with broker_of(started) as broker:
            for value in range(5):
                await broker.add(value)

    started = parent.spawn(tmp_path / "m")
    asyncio.run(add())
    os.kill(started["pid"], signal.SIGKILL)
    assert gone(started["pid"])
    journal = tmp_path / "m" / JOURNAL_NAME
    data = journal.read_bytes()
    middle = len(data.rstrip(b"\0")) // 2
    journal.write_bytes(data[:middle] + bytes(len(data) - middle))
    parent.spawn(tmp_path / "m")
    assert parent.ask(watch=True) == {"exit_code": ExitCode.DATA_DAMAGED}
    said = parent.log.read_text()
    assert f"does not start: quorum journal {journal} is damaged at byte" in said
    assert "what it has lost was confirmed" in said
    assert "move the folder away" in said


async def test_a_bug_in_the_rules_ends_the_process(parent: Parent, tmp_path: Path) -> None:
    started = parent.spawn(tmp_path / "m")
    async with broker_of(started) as broker:
        with pytest.raises(Exception, match="unknown"):
            await broker.client.propose({"bug": True}, 500)
    assert parent.ask(watch=True) == {"exit_code": ExitCode.BUG}
    assert "a bug in the rules" in parent.log.read_text()


async def test_a_command_of_a_later_release_is_not_let_in(parent: Parent, tmp_path: Path) -> None:
    """Once committed it would stop every voter that doesn't know it."""

    started = parent.spawn(tmp_path / "m")
    async with broker_of(started) as broker:
        _, result = await broker.client.propose({"type": "of a later release"}, TIMEOUT_MS)
        assert result.error is ErrorCode.UNSUPPORTED_VERSION
        assert "upgrade the controllers first" in (result.message or "")
        await broker.add("x")


def test_a_committed_command_of_a_later_release_ends_the_process_with_a_sentence(
    parent: Parent, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    journal = Journal.create(folder / JOURNAL_NAME, FileLayer())
    later = pack_envelope(b"c" * 16, 1, 1, 0, {"type": "of a later release"})
    journal.append([Entry(1, 1, later)])
    journal.close()
    parent.spawn(folder)
    assert parent.ask(watch=True) == {"exit_code": ExitCode.RELEASE_TOO_OLD}
    assert "the controller does not start: upgrade this node" in parent.log.read_text()


def test_two_controllers_do_not_share_a_folder(parent: Parent, tmp_path: Path) -> None:
    started = parent.spawn(tmp_path / "m")
    assert asyncio.run(values_of(started)) == []
    second = Parent(tmp_path / "second")
    try:
        second.spawn(tmp_path / "m")
        assert second.ask(watch=True) == {"exit_code": ExitCode.FOLDER_IN_USE}
        assert "another controller uses" in second.log.read_text()
    finally:
        second.close()
    assert asyncio.run(values_of(started)) == []


def test_a_successor_waits_for_the_folder_and_the_port(parent: Parent, tmp_path: Path) -> None:
    port = free_port()
    started = parent.spawn(tmp_path / "m", port=port)
    assert asyncio.run(values_of(started)) == []
    second = Parent(tmp_path / "second")
    try:
        second.say(spawn={"metadata_dir": str(tmp_path / "m"), "port": port})
        parent.process.kill()
        assert second.process.stdout is not None
        successor = json.loads(second.process.stdout.readline())
        assert asyncio.run(values_of(successor)) == []
    finally:
        second.close()


def test_off_loopback_without_a_secret_nothing_starts(parent: Parent, tmp_path: Path) -> None:
    parent.say(spawn={"metadata_dir": str(tmp_path / "m"), "host": "0.0.0.0"})
    assert parent.process.wait(10) != 0
    assert "openssl rand" in parent.log.read_text()


def test_the_controller_process_imports_nothing_heavy() -> None:
    code = (
        "import sys, kraftpy.quorum.process;"
        "print({'prometheus_client', 'cramjam', 'pysyncobj', 'pickle'} & {*sys.modules})"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert answer.stdout == b"set()\n"

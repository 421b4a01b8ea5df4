"""A short form of `raft_torture.py`; processes whose disk is full or holds damaged files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.quorum.process import ExitCode
from kraftpy.quorum.snapshot import JOURNAL_NAME
from tests.loops import run

from .raft_torture import torture
from .stack import Broker
from .voter_processes import VoterProcesses


@pytest.mark.parametrize(("only_leader", "rounds"), [(False, 2), (True, 3)])
def test_killed_voters_lose_nothing(tmp_path: Path, only_leader: bool, rounds: int) -> None:
    done = torture(tmp_path, rounds=rounds, only_leader=only_leader, seed=1)
    assert len(done.acknowledged) > 100
    snapshots = [p for voter in done.quorum.ports for p in done.quorum.snapshots(voter)]
    assert snapshots, "the load was too small for snapshots"


async def add_until(broker: Broker, stop: Callable[[], object]) -> list[int]:
    added: list[int] = []
    while not stop():
        added.append(len(added))
        await broker.add(added[-1])
        assert len(added) < 100_000
    return added


@pytest.mark.parametrize("leads", [True, False])
def test_a_full_disk_stops_a_voter_that_says_so(tmp_path: Path, leads: bool) -> None:
    async def test(quorum: VoterProcesses) -> None:
        async with quorum.broker() as broker:
            leader = broker.client.leader_id
            full = next(v for v in quorum.ports if (v == leader) is leads)
            quorum.limit_files(full, 1 << 20)
            pad = bytes(10_000)
            for _ in range(150):
                await broker.client.propose({"add": "x", "pad": pad}, 20_000)
            assert await asyncio.to_thread(quorum.wait, full) == ExitCode.DISK_FULL
            log = quorum.log(full).read_text()
            assert f"no space to write the quorum journal {quorum.voter_folder(full)}" in log
            assert "the other voters go on" in log
            await broker.add("after")
            await quorum.start_and_join(full)  # without the limit
            await broker.add("last")

    with VoterProcesses(tmp_path) as quorum:
        run(lambda: test(quorum))


@pytest.mark.parametrize("damaged", ["journal", "snapshot"])
def test_a_damaged_file_stops_a_voter_and_its_folder_comes_back_from_the_others(
    tmp_path: Path, damaged: str
) -> None:
    async def test(quorum: VoterProcesses) -> None:
        async with quorum.broker() as broker:
            first: list[Path] = []

            def journal_was_cut() -> bool:
                snapshots = quorum.snapshots(3)
                first.extend(snapshots[:1])
                return bool(first) and len(snapshots) == 2 and first[0] not in snapshots

            added = await add_until(broker, journal_was_cut)
            assert quorum.stop(3) == 0
            folder = quorum.voter_folder(3)
            if damaged == "journal":
                path = folder / JOURNAL_NAME
                data = bytearray(path.read_bytes())
                data[20] ^= 1  # far from the end: records follow
            else:
                path = quorum.snapshots(3)[0]
                quorum.snapshots(3)[1].unlink()  # the newest can be done without, this one not
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
            path.write_bytes(data)
            quorum.start(3)
            assert await asyncio.to_thread(quorum.wait, 3) == ExitCode.DATA_DAMAGED
            assert f"{path} is damaged" in quorum.log(3).read_text()
            folder.rename(tmp_path / "aside")
            await quorum.start_and_join(3)
            await broker.add("after")
            await quorum.all_equal(broker)
            for voter in quorum.ports:
                assert quorum.stop(voter) == 0
            assert quorum.values_on_disk(3) == quorum.values_on_disk(1) == [*added, "after"]

    with VoterProcesses(tmp_path, snapshot_interval_bytes=5_000) as quorum:
        run(lambda: test(quorum))


def test_a_leader_that_stops_in_order_is_followed_at_once(tmp_path: Path) -> None:
    async def test(quorum: VoterProcesses) -> None:
        async with quorum.broker() as broker:
            await broker.add(1)
            leader = broker.client.leader_id
            assert leader is not None
            assert quorum.stop(leader) == 0
            await broker.add(2)
            assert broker.copy.values == [1, 2]
            others = [v for v in quorum.ports if v != leader]
            assert all("stopping" not in quorum.log(v).read_text() for v in others)

    with VoterProcesses(tmp_path) as quorum:
        run(lambda: test(quorum))

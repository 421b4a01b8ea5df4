"""The single voter: group commit, a full or failing disk, terms, snapshots beside the traffic."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.journal import JournalDamagedError, JournalFailedError, JournalFullError
from kraftpy.quorum.packing import unpack
from kraftpy.quorum.port import MAX_COMMAND_SIZE_BYTES, Applied, ProposalRefusedError, Role
from kraftpy.quorum.single import SingleVoter
from kraftpy.quorum.snapshot import JOURNAL_NAME
from kraftpy.quorum.state import pack_envelope
from tests.waiting import until

from .faults import IO_ERROR, NO_SPACE, FailingLayer
from .standin import Values

CLIENT = b"c" * 16


def command(n: int, pad: int = 0) -> bytes:
    return pack_envelope(CLIENT, n, n, 0, {"add": n, "pad": bytes(pad)})


def values(quorum: SingleVoter) -> list[int]:
    state = quorum.snapshot()
    found: list[int] = unpack(state.state)["values"]
    for entry, fresh in quorum.entries_from(state.index + 1, 1 << 30) or ():
        if fresh:
            found.append(unpack(entry.command)[4]["add"])
    return found


def unexpected(error: Exception) -> None:
    raise AssertionError from error


def voter(folder: Path, **options: object) -> SingleVoter:
    options.setdefault("on_fatal", unexpected)
    return SingleVoter(folder, 1, Values, **options)  # type: ignore[arg-type]


async def test_proposals_of_one_iteration_share_one_sync_and_resolve_in_order(
    tmp_path: Path,
) -> None:
    files = FailingLayer()
    quorum = voter(tmp_path / "m", files=files)
    batches: list[list[int]] = []
    quorum.on_apply(lambda batch: batches.append([one.entry.index for one in batch]))
    syncs = files.syncs
    futures = [quorum.propose(command(n)) for n in range(1, 101)]
    applied = await asyncio.gather(*futures)
    assert files.syncs == syncs + 1
    assert [one.effective_index for one in applied] == list(range(2, 102))
    assert batches == [list(range(2, 102))]
    quorum.stop()


async def test_each_life_has_a_higher_term_and_leads(tmp_path: Path) -> None:
    for life in range(1, 4):
        quorum = voter(tmp_path / "m")
        heard: list[tuple[int | None, int]] = []
        quorum.on_leader(lambda leader, term: heard.append((leader, term)))  # noqa: B023
        await quorum.propose(command(life))
        assert (quorum.term, quorum.role, quorum.leader_id) == (life, Role.LEADER, 1)
        assert heard == [(1, life)]
        assert values(quorum) == list(range(1, life + 1))
        quorum.stop()


async def test_a_barrier_covers_what_was_proposed_before_it(tmp_path: Path) -> None:
    quorum = voter(tmp_path / "m")
    assert await quorum.barrier() == 1
    proposal = quorum.propose(command(1))
    assert await quorum.barrier() == 2
    assert proposal.done()
    quorum.stop()
    assert quorum.barrier().cancelled()
    assert quorum.propose(command(2)).cancelled()


async def test_a_full_disk_refuses_proposals_until_there_is_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingLayer()
    quorum = voter(tmp_path / "m", files=files)
    await quorum.propose(command(1))
    files.failures["write"] = NO_SPACE
    for n in (2, 3):
        with pytest.raises(ProposalRefusedError) as caught:
            await quorum.propose(command(n))
        assert caught.value.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    assert await quorum.barrier() == 2
    files.failures.clear()
    await quorum.propose(command(4))
    quorum.stop()
    quorum = voter(tmp_path / "m")
    assert values(quorum) == [1, 4]
    quorum.stop()
    files.failures["write"] = NO_SPACE
    with pytest.raises(JournalFullError):
        voter(tmp_path / "m", files=files)


@pytest.mark.parametrize("operation", ["datasync", "write"])
async def test_a_failing_disk_stops_everything(tmp_path: Path, operation: str) -> None:
    files = FailingLayer()
    errors: list[Exception] = []
    quorum = voter(tmp_path / "m", files=files, on_fatal=errors.append)
    seen: list[Applied] = []
    quorum.on_apply(seen.extend)
    files.failures[operation] = IO_ERROR
    proposal = quorum.propose(command(1))
    await until(lambda: errors)
    assert isinstance(errors[0], JournalFailedError)
    assert not seen
    assert proposal.cancelled()
    files.failures.clear()
    assert quorum.propose(command(2)).cancelled()


async def test_an_exception_in_the_rules_stops_everything(tmp_path: Path) -> None:
    errors: list[Exception] = []
    quorum = voter(tmp_path / "m", on_fatal=errors.append)
    proposal = quorum.propose(pack_envelope(CLIENT, 1, 1, 0, {"bug": True}))
    await until(lambda: errors)
    assert "a bug in the rules" in str(errors[0])
    assert proposal.cancelled()


async def test_command_sizes_are_bounded(tmp_path: Path) -> None:
    quorum = voter(tmp_path / "m")
    for bad in (b"", bytes(MAX_COMMAND_SIZE_BYTES + 1)):
        with pytest.raises(ProposalRefusedError) as caught:
            await quorum.propose(bad)
        assert caught.value.error is ErrorCode.INVALID_REQUEST
    largest = MAX_COMMAND_SIZE_BYTES - len(command(1, 100_000)) + 100_000
    futures = [quorum.propose(command(n, largest - 10)) for n in range(1, 6)]
    assert [one.effective_index for one in await asyncio.gather(*futures)] == [2, 3, 4, 5, 6]
    quorum.stop()


async def test_snapshots_are_written_beside_the_traffic_and_bound_the_journal(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "m"
    quorum = voter(folder, snapshot_interval_bytes=5_000)

    def checkpoints() -> list[str]:
        return sorted(p.name for p in folder.glob("*.checkpoint"))

    n = 0
    first: list[str] = []
    while len(checkpoints()) < 2 or not first or checkpoints()[0] in first:
        n += 1
        await quorum.propose(command(n, 100))
        first = first or checkpoints()
        if not quorum._replica._helper.busy and first:
            oldest = int(checkpoints()[0].partition("-")[0])
            assert quorum._replica.journal.base_index <= oldest, "it can stand in for the newest"
        assert n < 20_000
    await until(lambda: not quorum._replica._helper.busy)
    assert len(checkpoints()) == 2
    assert quorum._replica.journal.base_index == int(checkpoints()[0].partition("-")[0])
    assert quorum.entries_from(1, 1) is None
    assert values(quorum) == list(range(1, n + 1))
    quorum.stop()
    again = voter(folder)
    assert values(again) == list(range(1, n + 1))
    assert again._replica.journal.base_index > 1
    again.stop()


async def test_a_journal_that_vanished_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    quorum = voter(tmp_path / "m")
    await quorum.propose(command(1))
    quorum.stop()
    (tmp_path / "m" / JOURNAL_NAME).unlink()
    with pytest.raises(JournalDamagedError, match="is missing though"):
        voter(tmp_path / "m")


async def test_a_snapshot_that_finds_no_space_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "m"
    files = FailingLayer()
    quorum = voter(folder, files=files, snapshot_interval_bytes=2_000)
    files.failures["create"] = NO_SPACE
    for n in range(1, 101):
        await quorum.propose(command(n, 100))
    await until(lambda: "the journal is kept" in caplog.text)
    assert not list(folder.glob("*.checkpoint*"))
    files.failures.clear()
    n = 100
    while not list(folder.glob("*.checkpoint")):
        n += 1
        await quorum.propose(command(n, 100))
    quorum.stop()


@pytest.mark.parametrize("call", ["fork", "pidfd_open"])
async def test_a_snapshot_for_which_no_process_can_be_had_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """All voters are to write a snapshot at about the same index: none may stop for that."""

    def fail(*_: object) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    folder = tmp_path / "m"
    quorum = voter(folder, snapshot_interval_bytes=2_000)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        for n in range(1, 101):
            await quorum.propose(command(n, 100))
    assert "the journal is kept" in caplog.text
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # noqa: ASYNC222
        assert not ended, "a zombie"
    n = 100
    while not list(folder.glob("*.checkpoint")):
        n += 1
        await quorum.propose(command(n, 100))
    quorum.stop()


async def test_a_damaged_snapshot_is_not_sent_to_followers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "m"
    quorum = voter(folder, snapshot_interval_bytes=1_000)
    for n in range(1, 21):
        await quorum.propose(command(n, 100))
    await until(lambda: list(folder.glob("*.checkpoint")) and not quorum._replica._helper.busy)
    for path in folder.glob("*.checkpoint"):
        path.write_bytes(path.read_bytes()[:-1])
    snapshot = quorum.snapshot()
    assert snapshot.index == quorum.applied_index
    assert unpack(snapshot.state) == {"values": list(range(1, 21))}
    assert "damaged" in caplog.text
    quorum.stop()

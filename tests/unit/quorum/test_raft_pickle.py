"""No pickle from the network or a file is ever loaded, by kraftpy or by the library under it."""

from __future__ import annotations

import asyncio
import pickle
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.serializer
import pysyncobj.syncobj
import pysyncobj.tcp_connection
import pytest

from kraftpy.quorum.journal import JournalDamagedError
from kraftpy.quorum.raft.messages import Kind
from kraftpy.quorum.snapshot import JOURNAL_NAME, SnapshotDamagedError
from kraftpy.quorum.transport import FrameConnection
from tests.waiting import until

from .raft_stack import CREDENTIALS, Trio


class Bomb:
    """Unpickling one makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "unpickled"


def test_the_bomb_works(mark: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()


@pytest.mark.parametrize(
    "load",
    [
        pysyncobj.pickle.loads,
        pysyncobj.pickle.load,
        pysyncobj.syncobj.pickle.loads,
        pysyncobj.serializer.pickle.load,
        pysyncobj.tcp_connection.pickle.loads,
        pysyncobj.journal.loads,
        pysyncobj.pickle.pickle.loads,
        pysyncobj.pickle.dumps,
    ],
)
def test_every_way_of_pysyncobj_to_pickle_is_closed(load: Callable[[bytes], object]) -> None:
    with pytest.raises(RuntimeError, match="does not pickle"):
        load(pickle.dumps(1))


class Intruder(FrameConnection):
    """A voter that knows the secret and sends what it shouldn't."""

    def __init__(self) -> None:
        super().__init__(CREDENTIALS, dialer=True)
        self.ended = asyncio.Event()

    def introduction(self, other: Any) -> Any:
        return ["voter", 3, [1, 2, 3]]

    def authenticated(self, introduction: Any) -> None:
        pass

    def disconnected(self, reason: str | None) -> None:
        self.ended.set()


async def test_pickles_from_the_network_are_not_loaded(tmp_path: Path, mark: Path) -> None:
    bomb = pickle.dumps(Bomb(mark))

    Intruder.received = lambda self, message: self.sent_to.append(message)  # type: ignore[method-assign]
    Intruder.sent_to = []  # type: ignore[attr-defined]
    async with Trio(tmp_path) as trio:
        await trio.leader()
        trio.stop(3)
        address = trio.addresses[1]
        loop = asyncio.get_running_loop()
        # pysyncobj's own frame, from somebody who knows nothing
        reader, writer = await asyncio.open_connection(*address)
        frame = zlib.compress(bomb)
        writer.write(struct.pack("i", len(frame)) + frame)
        assert await reader.read() == b""
        writer.close()
        # a frame with the right MAC
        _, intruder = await loop.create_connection(Intruder, *address)
        await until(lambda: intruder.is_authenticated)
        intruder.send_packed(bomb)
        await intruder.ended.wait()
        # as a command in a leader's message, and as a piece of a snapshot
        _, intruder = await loop.create_connection(Intruder, *address)
        await until(lambda: intruder.is_authenticated)
        voter = trio.voters[1]
        term, end = voter.term + 1, voter._node.last_index
        previous_term = voter._node._log.term_at(end)
        entries = [[term, bomb]]
        intruder.send([Kind.APPEND, term, 1, end + 1, end, previous_term, entries])
        await until(lambda: voter.applied_index > end)
        chunk = [Kind.SNAPSHOT, term, 2, end + 9, term, len(bomb), 0, bomb]
        intruder.send(chunk)
        await until(lambda: len(intruder.sent_to) > 1)
        intruder.close()
        assert not trio.errors
    assert not mark.exists()


@pytest.mark.parametrize("damaged", ["journal", "snapshots"])
async def test_a_pickle_in_a_file_stops_the_voter(tmp_path: Path, mark: Path, damaged: str) -> None:
    bomb = pickle.dumps(Bomb(mark))
    folder = tmp_path / "1"

    trio = Trio(tmp_path, snapshot_interval_bytes=1)
    async with trio:
        leader = await trio.leader()
        while trio.voters[1]._replica.journal.base_index == 0:
            await leader.barrier()
    if damaged == "journal":
        (folder / JOURNAL_NAME).write_bytes(bomb)
    else:
        for path in folder.glob("*.checkpoint"):
            path.write_bytes(bomb)
    (folder / (JOURNAL_NAME + ".meta")).write_bytes(bomb)  # where pysyncobj would look
    with pytest.raises((JournalDamagedError, SnapshotDamagedError), match=str(folder)):
        await trio.start(1)
    assert not mark.exists()


def test_a_quorum_of_one_does_not_import_pysyncobj() -> None:
    code = "import sys, kraftpy.quorum.process; sys.exit('pysyncobj' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Whatever happens to one file of a data folder, no record is lost or changed without a word.

Every kind of file is damaged in turn, after a clean stop and after kill -9; then the broker starts.
It either serves every record byte for byte, or refuses in a sentence that names the file. Beyond
that only this is allowed, because no broker can tell or because Kafka decided so:

* after kill -9, what looks like the end of an interrupted write is cut, with a line that says so;
* a changed bit in a batch is served, and the consumer finds it by the batch's checksum;
* a partition whose topic isn't in the metadata any more, as the journal's last entry may be cut, is
  kept under another name, with a line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import check_batch
from kraftpy.testing import Broker
from kraftpy.testing.broker import BrokerError
from tests.server.test_produce import batch
from tests.server.wire import Wire, fetch, produce

LOG_START = 2
RECORDS = 23


class Stopped(NamedTuple):
    """A data folder that was left behind, and the batches in it from LOG_START on."""

    folder: Path
    batches: list[bytes]
    killed: bool


def create(wire: Wire, **configs: object) -> None:
    request = messages.CreateTopicsRequest
    settings = [
        request.CreatableTopicConfig(key.replace("_", "."), str(value))
        for key, value in configs.items()
    ]
    topic = request.CreatableTopic("t", 1, 1, configs=settings)
    response = wire.call(ApiKey.CREATE_TOPICS, 7, request(topics=[topic], timeout_ms=10_000))
    assert response.topics[0].error_code == 0


def delete_records(wire: Wire, before: int) -> None:
    request = messages.DeleteRecordsRequest
    topic = request.DeleteRecordsTopic("t", [request.DeleteRecordsPartition(0, before)])
    response = wire.call(ApiKey.DELETE_RECORDS, 2, request(topics=[topic], timeout_ms=10_000))
    assert response.topics[0].partitions[0].error_code == 0


def fill(broker: Broker, first: int, last: int) -> None:
    with Wire(broker.host, broker.port) as wire:
        for number in range(first, last):
            data = batch(b"%04d" % number * 100, **sequence(number))
            assert produce(wire, "t", data).error_code == 0


def sequence(number: int) -> dict[str, Any]:
    return {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}


def read(wire: Wire) -> list[bytes]:
    """All batches up to the first that a consumer would refuse, or that can't be had."""
    batches: list[bytes] = []
    offset = LOG_START
    while True:
        answer = fetch(wire, "t", offset)
        data = bytes(answer.records or b"")
        if answer.error_code or not data:
            return batches
        position = 0
        while position < len(data):
            try:
                header = check_batch(data, position)
            except DecodeError:
                return batches
            batches.append(data[position : position + header.size_bytes])
            position += header.size_bytes
            offset = header.last_offset + 1


@pytest.fixture(scope="module")
def leave(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stopped]:
    """Gives what a broker left behind that was "stopped" or "killed", the same each time.

    Five segments of four batches that are flushed, and one with three of which two are.
    """

    @cache
    def leave(state: str) -> Stopped:
        folder = tmp_path_factory.mktemp(state)
        with Broker(dir=folder) as broker:
            with Wire(broker.host, broker.port) as wire:
                create(wire, internal_segment_bytes=2048, index_interval_bytes=256)
                fill(broker, 0, 22)
                delete_records(wire, LOG_START)
            broker.restart()
            fill(broker, 22, RECORDS)
            with Wire(broker.host, broker.port) as wire:
                batches = read(wire)
            assert len(batches) == RECORDS - LOG_START
            if state == "killed":
                broker.kill()
        return Stopped(folder, batches, state == "killed")

    return leave


@pytest.fixture
def left(request: pytest.FixtureRequest, leave: Callable[[str], Stopped]) -> Stopped:
    return leave(request.param)


def removed(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def halved(path: Path) -> None:
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) // 2)


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    path.write_bytes(data)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (removed, emptied, halved, one_bit, zeroed, a_folder)
SEGMENTS = ("t-0/*0.log", "t-0/*12.log", "t-0/*20.log")
OTHERS = (
    ".kafka_cleanshutdown",
    ".lock",
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "__cluster_metadata-0/.lock",
    "__cluster_metadata-0/quorum.journal",
    "__cluster_metadata-0/quorum.secret",
    "t-0/*12.index",
    "t-0/*12.timeindex",
    "t-0/*20.snapshot",
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
)


EMPTY = (".kafka_cleanshutdown", ".lock", "__cluster_metadata-0/.lock")


def is_damage(state: str, name: str, damage: Callable[[Path], None]) -> bool:
    """Whether the damage changes anything: some files are empty, one a killed broker hasn't."""
    if name == ".kafka_cleanshutdown" and state == "killed":
        return False
    return name not in EMPTY or damage in (removed, a_folder)


# Every damage of what is likeliest to pass unseen; of the others two each.
CASES = [
    (state, name, damage)
    for turn, state in enumerate(("stopped", "killed"))
    for row, name in enumerate((*SEGMENTS, *OTHERS))
    for column, damage in enumerate(DAMAGES)
    if name == SEGMENTS[1]
    or (name == "t-0/partition.metadata" and state == "stopped")
    or (row + column + 3 * turn) % len(DAMAGES) == 0
    if is_damage(state, name, damage)
]


def copy(left: Stopped, target: Path) -> Path:
    shutil.copytree(left.folder, target, dirs_exist_ok=True)
    properties = target / "node1" / "server.properties"
    properties.write_text(properties.read_text().replace(str(left.folder), str(target)))
    (target / "node1" / "log").unlink()
    return target / "node1" / "data"


def started(broker: Broker) -> str | None:
    """Why it doesn't start, None if it does."""
    try:
        broker.start()
    except BrokerError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("left", "name", "damage"), CASES, indirect=["left"])
def test_damage_is_repaired_or_refused(
    left: Stopped, name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    data_folder = copy(left, tmp_path)
    path = next(iter(sorted(data_folder.glob(name))), None)
    assert path is not None, f"the broker writes no {name} any more"
    assert path.stat().st_size or damage in (removed, a_folder)
    damage(path)
    with contextlib.closing(Broker(dir=tmp_path)) as broker:
        refusal = started(broker)
        if refusal is not None:
            assert "Traceback" not in refusal
            assert str(path) in refusal or path.parent.name in refusal or "metadata log" in refusal
            return
        with Wire(broker.host, broker.port) as wire:
            found = read(wire)
            if found == left.batches:
                again = produce(wire, "t", batch(b"again", **sequence(RECORDS - 1)))
                assert (again.error_code, again.base_offset) == (0, RECORDS - 1)
    log = broker.log_path.read_text()
    assert "Traceback" not in log
    if found != left.batches:
        assert found == left.batches[: len(found)]
        assert (
            (left.killed and "cut a torn tail" in log)
            or "its records are kept in" in log
            or (damage is one_bit and path.suffix == ".log")
        )
